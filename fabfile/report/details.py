"""The page's texts and tables: a run's machines, checkpoints, log and job file; runs side by side."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from urllib.parse import quote

from fabfile.output import gigabytes
from fabfile.report import numbers
from fabfile.report.curves import saved_steps
from fabfile.report.load import dict_of, list_of
from fabfile.report.run import JobRun, NodeFacts
from node.run_data import number

_FEATURES = ("amx", "avx512_bf16", "avx512")
_SOFTWARE_FIRST = ("torch", "ipex", "accelerate", "oneccl_bind_pt", "impi", "tcmalloc", "python")
_SYSTEM_LAST = ("os", "kernel", "cloud-init")
_UNIMPORTANT = ("run.name", "run.directory")
_RESULTS: tuple[tuple[str, Callable[[JobRun], float | None], Callable[[float | None], str]], ...] = (
    ("duration", lambda run: run.duration, numbers.span),
    ("steps", lambda run: run.last.step if run.points else None, numbers.plain),
    ("tokens", lambda run: run.tokens if run.points else None, numbers.count),
    ("tokens per second", lambda run: run.speed, numbers.count),
    ("share of the matmul peak", lambda run: run.peak_share, numbers.percent),
    ("last loss", lambda run: run.last.loss, numbers.fixed),
    ("best validation loss", lambda run: run.best.loss if run.best else None, numbers.fixed),
    ("its bits per byte", lambda run: run.best.bits_per_byte if run.best else None, numbers.fixed),
    ("its perplexity", lambda run: run.best.perplexity if run.best else None, numbers.fixed),
    ("rounds with other clusters", lambda run: number(run.clusters.get("rounds")), numbers.plain),
    ("bytes sent to them", lambda run: number(run.clusters.get("sent")), numbers.size),
    ("bytes received", lambda run: number(run.clusters.get("received")), numbers.size),
    ("waited for them", lambda run: number(run.clusters.get("waited")), numbers.span),
    ("restarts", lambda run: float(run.restarts) if run.attempts else None, numbers.plain),
    ("cost", lambda run: run.cost, numbers.money),
)

_OF_CLUSTERS = {"tokens": "tokens, all clusters'", "tokens per second": "tokens per second, its own cluster's"}
"""Names of those results that are not of the same tokens where several clusters train a job together."""


def origin(run: JobRun) -> list[str]:
    """The run's nodes, time and precision, as far as known."""
    begun = numbers.moment(run.started) if run.started is not None else ""
    going = f", still under way at {numbers.moment(run.now)}" if begun and run.ended is None else ""
    return [part for part in (_nodes(run), begun + going, f"in {run.precision}" if run.precision else "") if part]


def _nodes(run: JobRun) -> str:
    """3 nodes (node1, node2, node3), 3 ranks, at the end without node3"""
    every = run.all_nodes
    if not every:
        return ""
    names = ", ".join(every) if len(every) <= 4 else f"{every[0]} … {every[-1]}"
    ranks = f", {run.ranks} {'rank' if run.ranks == 1 else 'ranks'}" if run.ranks else ""
    gone = [name for name in every if name not in run.nodes]
    lost = f", at the end without {', '.join(gone)}" if gone else ""
    return f"{len(every)} {'node' if len(every) == 1 else 'nodes'} ({names}){ranks}{lost}"


def tiles(run: JobRun) -> list[tuple[str, str, str]]:
    """(name, figure, detail) of the main figures."""
    restarts = f"{run.restarts} restart{'s' * (run.restarts > 1)}" if run.restarts else ""
    hourly = f"{numbers.money(run.hourly_usd)} an hour" if run.hourly_usd is not None else ""
    duration, cost = ("duration", numbers.span(run.duration), restarts), ("cost", numbers.money(run.cost), hourly)
    if run.program:
        shown = [
            ("attempts", numbers.plain(len(run.attempts)), ""),
            ("nodes", numbers.plain(len(run.all_nodes)), ""),
            ("exit code", numbers.plain(run.exit_code), ""),
        ]
        steps = [("step", numbers.plain(run.beats), "by its heartbeats")] if run.beats is not None else []
        return [duration, *shown, *steps, cost]
    return [duration, *_of_training(run), cost]


def _of_training(run: JobRun) -> list[tuple[str, str, str]]:
    """The figures that only the trainer's jobs have."""
    share, best, shared = run.peak_share, "", run.own_share < 1
    speed = ("of this cluster" if shared else "", f"{numbers.percent(share)} of peak" if share else "")
    if run.best is not None:
        bits = run.best.bits_per_byte
        quality = f"{numbers.fixed(bits)} bits per byte, " if bits is not None else ""
        if run.best.perplexity is not None:
            quality = f"perplexity {numbers.fixed(run.best.perplexity)}, "
        best = f"{quality}step {numbers.plain(run.best.step)}"
    return [
        ("steps", numbers.plain(run.last.step), f"of {numbers.plain(run.steps)}" if run.steps else ""),
        ("tokens", numbers.count(run.tokens if run.points else None), "of all clusters" if shared else ""),
        ("tokens a second", numbers.count(run.speed), ", ".join(part for part in speed if part)),
        ("last loss", numbers.fixed(run.last.loss), ""),
        ("best validation", numbers.fixed(run.best.loss if run.best else None), best),
    ]


def attempts(run: JobRun) -> list[tuple[str, str, str]]:
    """(time since the start, nodes, how it ended) of each attempt at a program."""
    start = run.attempts[0].time if run.attempts else 0.0
    last = len(run.attempts) - 1
    return [
        (_clock(one.time - start), ", ".join(one.nodes), one.end or (run.state.lower() if index == last else "ended"))
        for index, one in enumerate(run.attempts)
    ]


def last_lines(run: JobRun) -> list[tuple[str, str, str]]:
    """(time since the start, who, text) of the last lines of a program's log."""
    start = run.started if run.started is not None else 0.0
    return [(_clock(when - start), who, text) for when, who, text in run.lines]


def job_file_link(run: JobRun) -> str:
    """A data: link with the job file in it, so that the page is self-contained."""
    return "data:application/toml;charset=utf-8," + quote(run.job_toml.encode("utf-8", "replace"), safe="")


def checkpoints(run: JobRun) -> str:
    """How many checkpoints were made, and which are still there."""
    made, every = saved_steps(run), run.config.get("checkpoint.every")
    if not made:
        return "None was made."
    shown = [numbers.plain(step) for step in run.on_disk]
    there = f"steps {', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else f"step {''.join(shown)}"
    sentences = [f"{len(made)} made{f', one every {every} steps' if every else ''}."]
    sentences.append(f"Still there: {there}." if shown else "None is there any more.")
    if run.best_on_disk is not None:
        sentences.append(f"The best model, by validation loss, is that of step {numbers.plain(run.best_on_disk)}.")
    return " ".join(sentences)


def clusters(run: JobRun) -> str:
    """Who trained together, and what they exchanged; empty for a job of one cluster."""
    facts = run.clusters
    rounds = number(facts.get("rounds"))
    if rounds is None:
        return ""
    named = [one for one in list_of(facts, "clusters") if isinstance(one, dict)]
    others = [one for one in named if one.get("cluster") != facts.get("cluster")]
    runs = " and ".join(f"{one.get('run') or 'a run'} on {one.get('name') or one.get('cluster')}" for one in others)
    sent, received, waited = (number(facts.get(name)) for name in ("sent", "received", "waited"))
    return (
        f"Trained together{f' with {runs}' if runs else ''}: {numbers.plain(rounds)} rounds, of which"
        f" {numbers.plain(number(facts.get('complete')))} had the most clusters; {numbers.size(sent)} sent,"
        f" {numbers.size(received)} received, {numbers.span(waited)} waited for the others."
    )


def machines(run: JobRun) -> tuple[list[str], list[list[str]]]:
    """(names, rows of a property and its values): a column for each node; equal nodes share one."""
    groups: dict[str, list[NodeFacts]] = {}
    for machine in run.machines:
        if not machine.reason:
            groups.setdefault(repr(_properties(machine)), []).append(machine)
    properties = [_properties(group[0]) for group in groups.values()]
    keys = dict.fromkeys(key for one in properties for key in one)
    rows = [[key, *(one.get(key, numbers.NOTHING) for one in properties)] for key in keys]
    names = [[machine.name for machine in group] for group in groups.values()]
    return [", ".join(n) if len(n) <= 3 else f"{n[0]} … {n[-1]} ({len(n)} alike)" for n in names], rows


def _properties(machine: NodeFacts) -> dict[str, str]:
    ready, cpu = machine.ready, dict_of(machine.ready, "cpu")
    features = " ".join(name for name in _FEATURES if cpu.get(name) is True)
    cores = f"{cpu['cores']} cores" if cpu.get("cores") else ""
    memory = number(ready.get("memory_gb"))
    found = {
        "profile": ready.get("profile"),
        "collectives": ready.get("collectives"),
        "processor": ", ".join(filter(None, (str(cpu.get("model") or ""), cores, features))),
        "memory": gigabytes(memory) if memory else None,
        **dict(sorted(_versions(machine).items(), key=lambda item: _order(item[0]))),
        "image": str(ready.get("image") or "")[:12],
    }
    return {name: str(value) for name, value in found.items() if value}


def _versions(machine: NodeFacts) -> dict[str, str]:
    """The software of a node: name -> version."""
    return {str(name): str(value) for name, value in dict_of(machine.ready, "versions").items()}


def _order(name: str) -> tuple[int, str]:
    """A sort key: the software that training runs on first, the system last."""
    if name in _SOFTWARE_FIRST:
        return _SOFTWARE_FIRST.index(name), name
    return 50 + _SYSTEM_LAST.index(name) if name in _SYSTEM_LAST else 20, name


def log(run: JobRun) -> list[tuple[str, str, str]]:
    """(time since the start, who, text) of the log's important lines; a gap is a row with the number left out."""
    start = run.started if run.started is not None else run.notes[0][0] if run.notes else 0.0
    rows = [(_clock(when - start), who, text) for when, who, text in run.notes]
    if run.notes_omitted:
        rows.insert(len(rows) // 2, ("", "", f"… {run.notes_omitted} more lines …"))
    return rows


def _clock(seconds: float) -> str:
    """0:00:42; empty for a time that cannot be right."""
    return str(datetime.timedelta(seconds=int(seconds))) if 0 <= seconds < 1e9 else ""


def results(runs: Sequence[JobRun]) -> list[list[str]]:
    """Rows of a name and each run's value; for two runs also the change from the first to the second."""
    pair = len(runs) == 2
    rows = [["state", *(run.state.lower() for run in runs), *([""] if pair else [])]]
    for name, value, form in _RESULTS:
        values = [value(run) for run in runs]
        if any(one is not None for one in values):
            shown = _OF_CLUSTERS.get(name, name) if any(run.own_share < 1 for run in runs) else name
            rows.append([shown, *map(form, values), *([numbers.change(*values)] if pair else [])])
    return rows


def by_run(runs: Sequence[JobRun]) -> list[list[str]]:
    """Many runs, each a row: what sets them apart and their results, below the names of these."""
    different, _ = differences(runs)
    columns = [*different, *results(runs)]
    names, *rows = zip(*columns, strict=True)
    return [["run", *names], *([run.id, *row] for run, row in zip(runs, rows, strict=True))]


def differences(runs: Sequence[JobRun]) -> tuple[list[list[str]], int]:
    """(rows of a key and each run's value, for the keys that differ; the number of keys equal in all runs)."""
    settings = [_settings(run) for run in runs]
    keys = dict.fromkeys(key for one in settings for key in one)
    rows = [[key, *(one.get(key, numbers.NOTHING) for one in settings)] for key in keys]
    different = [row for row in rows if len(set(row[1:])) > 1]
    return different, len(rows) - len(different)


def _settings(run: JobRun) -> dict[str, str]:
    found = {key: _as_toml(value) for key, value in run.config.items() if key not in _UNIMPORTANT}
    found |= {"nodes": ", ".join(run.all_nodes), "ranks": numbers.plain(run.ranks), "precision taken": run.precision}
    for name in sorted({name for machine in run.machines for name in _versions(machine)}):
        nodes_of: dict[str, list[str]] = {}
        for machine in run.machines:
            if machine.ready:
                nodes_of.setdefault(_versions(machine).get(name, "none"), []).append(machine.name)
        every = [one if len(nodes_of) == 1 else f"{one} on {' '.join(nodes)}" for one, nodes in nodes_of.items()]
        found[f"version of {name}"] = ", ".join(every)
    return {key: value for key, value in found.items() if value}


def _as_toml(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


def decisions(run: JobRun) -> list[tuple[str, str, str]]:
    """(time since the start, the money spent until then, text) of each decision of the run's manager."""
    start = run.started if run.started is not None else run.decisions[0][0] if run.decisions else 0.0
    return [(_clock(when - start), numbers.money(usd) if usd else "", text) for when, text, usd in run.decisions]
