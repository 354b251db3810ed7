"""The rest of the page: what it ran on, its exact configuration, what its log tells, how to do it again."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from fabfile.output import gigabytes
from fabfile.report import numbers
from fabfile.report.compare import versions
from fabfile.report.curves import saved_steps
from fabfile.report.facts import Machine, Run, dict_of
from fabfile.report.markup import Markup, element, join, table

_FEATURES = ("amx", "avx512_bf16", "avx512")


def again(run: Run) -> Markup:
    """The command that does the same, and the file that it needs, in the page itself."""
    file = f"{run.id}.toml"
    link = element("a", file, href="data:application/toml;charset=utf-8," + _encoded(run.job_toml), download=file)
    first = join(["Save ", link, " (the configuration below), then:"])
    return join([element("p", first) if run.job_toml else "", element("pre", run.command, class_="command")])


def _encoded(text: str) -> str:
    return quote(text.encode("utf-8", "replace"), safe="")


def configuration(run: Run) -> Markup:
    if not run.job_toml:
        return element("p", "There is no job.toml in its run directory.")
    return element("pre", run.job_toml.strip())


def checkpoints(run: Run) -> Markup:
    """Where one was made, and which are still there."""
    made = saved_steps(run)
    if not made:
        return element("p", "None was made.")
    every = run.config.get("checkpoint.every")
    said = [f"{len(made)} made{f', one every {every} steps' if every else ''}."]
    said.append(f"Still there: {_listed(run.on_disk)}." if run.on_disk else "None is there any more.")
    if run.best_on_disk is not None:
        said.append(f"The best model, by validation loss, is that of step {numbers.plain(run.best_on_disk)}.")
    return element("p", " ".join(said))


def _listed(steps: Sequence[float]) -> str:
    shown = [numbers.plain(step) for step in steps]
    return f"step {shown[0]}" if len(shown) == 1 else f"steps {', '.join(shown[:-1])} and {shown[-1]}"


def machines(run: Run) -> Markup:
    """One column for each node; of many nodes, those that are the same share one."""
    groups: dict[str, list[Machine]] = {}
    for machine in run.machines:
        groups.setdefault(repr((_facts(machine), machine.reason)), []).append(machine)
    if not groups:
        return element("p", "What its nodes were is not known here.")
    each = [group for group in groups.values() if not group[0].reason]
    facts = [_facts(group[0]) for group in each]
    heading: list[object] = ["", *(_names(group) for group in each)]
    names = list(dict.fromkeys(name for fact in facts for name in fact))
    rows: list[list[object]] = [[name, *(fact.get(name, numbers.NOTHING) for fact in facts)] for name in names]
    unknown = [machine for group in groups.values() for machine in group if machine.reason]
    notes = [element("p", f"{machine.name}: {machine.reason}", class_="note") for machine in unknown]
    return join([table(heading, rows) if rows else "", *notes])


def _names(group: list[Machine]) -> str:
    names = [machine.name for machine in group]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]} ({len(names)} alike)"


def _facts(machine: Machine) -> dict[str, str]:
    ready = machine.ready
    cpu = dict_of(ready, "cpu")
    found = {"profile": ready.get("profile"), "collectives": ready.get("collectives"), "processor": _processor(cpu)}
    found |= {"memory": gigabytes(memory) if (memory := _number(ready.get("memory_gb"))) else None}
    found |= dict(sorted(versions(ready).items(), key=lambda item: _order(item[0])))
    found["image"] = str(ready.get("image") or "")[:12]
    return {str(name): str(value) for name, value in found.items() if value}


def _order(name: str) -> tuple[int, str]:
    """What the training runs on first, then what the machine runs on."""
    first = ("torch", "ipex", "accelerate", "oneccl_bind_pt", "impi", "tcmalloc", "python")
    last = ("os", "kernel", "cloud-init")
    return (first.index(name) if name in first else 50 + last.index(name) if name in last else 20, name)


def _processor(cpu: Mapping[str, object]) -> str:
    features = [name for name in _FEATURES if cpu.get(name) is True]
    parts = [str(cpu.get("model") or ""), f"{cpu['cores']} cores" if cpu.get("cores") else "", " ".join(features)]
    return ", ".join(part for part in parts if part)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def samples(run: Run) -> Markup:
    """Texts that were sampled from its model, the newest first."""
    parts: list[object] = []
    for model, text in reversed(run.samples):
        parts.append(element("pre", text.strip("\n")))
        parts.append(element("p", f"by the model of {model}", class_="note") if model else "")
    return join(parts)


def log(run: Run) -> Markup:
    """Its lines that tell how it went, with the time since its start."""
    if not run.notes:
        return Markup("")
    start = run.started if run.started is not None else run.notes[0][0]
    rows = [
        element("li", element("time", _since(when - start)), element("span", who, class_="who"), element("span", text))
        for when, who, text in run.notes
    ]
    if run.notes_left_out:
        rows.insert(len(rows) // 2, element("li", "", element("span", f"… {run.notes_left_out} more lines …")))
    return element("ol", *rows, class_="log")


def _since(seconds: float) -> str:
    """0:00:42"""
    if not 0 <= seconds < 1e9:
        return ""
    return str(datetime.timedelta(seconds=int(seconds)))
