"""Read runs for a report, from a cluster or from a fetched folder: makes a JobRun from the output of node/run_data.py.
Values that are missing or of a wrong type are left out."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.base import Backend
from fabfile.report.run import JobRun, JobStart, NodeFacts, Point, Usage, Validation
from node import run_data
from node.job.files import OVER, PROGRAM
from node.run_data import number


def from_folder(folder: Path) -> JobRun:
    """The run in a run directory on this machine; Exit 2 if it is none. Only its cluster knows its price."""
    if not any((folder / name).exists() for name in ("metrics.jsonl", "job.toml", PROGRAM)):
        raise Exit(f"{folder}: not a run directory: it has neither metrics.jsonl nor job.toml", code=2)
    return run_of(run_data.collect(folder.absolute()))


def from_cluster(backend: Backend, ids: Sequence[str]) -> list[JobRun]:
    """Runs of a cluster by their ids. Exit 2 for an unknown run, 1 if the cluster does not answer."""
    with backend:
        runs, records = backend.run_data(ids), backend.ready_records()
    nodes = backend.nodes()
    # A scheduler's machines come and go: those that nobody can be asked about are left out.
    machines = [_machine(node.name, records[node.name]) for node in nodes if node.name in records]
    return [run_of(run, machines, {node.name: node.ranks for node in nodes}, nodes[0].usd_per_hour) for run in runs]


def _machine(name: str, record: object) -> NodeFacts:
    if isinstance(record, Exception):
        return NodeFacts(name, {}, str(record))
    return NodeFacts(name, record if isinstance(record, dict) else {})


def run_of(
    answer: Mapping[str, Any],
    machines: Sequence[NodeFacts] = (),
    slots: Mapping[str, int] | None = None,
    node_usd: float | None = None,
) -> JobRun:
    """The run in the output `answer`. `slots`: ranks by node, if known; `node_usd`: a node's price per hour."""
    state, spec, log = dict_of(answer, "state"), dict_of(answer, "spec"), dict_of(answer, "log")
    metrics, disk = dict_of(answer, "metrics"), dict_of(answer, "checkpoints")
    points = tuple(_point(entry) for entry in _dicts(metrics.get("points")))
    attempts = _attempts(log, points)
    asked, nodes, ever = _nodes(spec, state, attempts)
    started, ended, now = _times(answer, state, log, points)
    return JobRun(
        id=str(answer.get("id")),
        state=_state(state),
        reason=str(state.get("reason") or ""),
        nodes=nodes,
        all_nodes=ever,
        slots={**_seen_slots(disk), **(slots or {}), **_slots(dict_of(spec, "cluster").get("nodes"))},
        started=started,
        ended=ended,
        now=now,
        hourly_usd=first_number(state.get("price_per_hour"), None if node_usd is None else node_usd * len(nodes)),
        paused=_paused(log),
        job_toml=str(answer.get("job_toml") or ""),
        config=_flat(answer),
        points=points,
        validations=_validations(metrics.get("validations")),
        best=next(iter(_validations([metrics.get("best")])), None),
        totals={str(key): v for key, raw in dict_of(metrics, "totals").items() if (v := number(raw)) is not None},
        program=shlex.join(map(str, list_of(_program(spec, answer), "argv"))),
        exit_code=_int(state.get("exit_code")),
        beats=number(dict_of(answer, "said").get("step")),
        lines=tuple(_note(row) for row in _rows(dict_of(answer, "said").get("lines"))),
        clusters=dict_of(answer, "clusters"),
        width=_int(metrics.get("width")) or 1,
        skipped=_int(metrics.get("skipped")) or 0,
        attempts=attempts,
        notes=tuple(_note(note) for note in _rows(log.get("notes"))),
        notes_omitted=_int(log.get("left_out")) or 0,
        decisions=_decisions(answer.get("managed")),
        on_disk=tuple(step for step in list_of(disk, "steps") if isinstance(step, int)),
        best_on_disk=number(disk.get("best")),
        precision=str(dict_of(disk, "newest").get("precision") or ""),
        usage=_usage(dict_of(answer, "usage")),
        samples=_samples(answer.get("samples")),
        command=_command(spec, answer, asked or nodes),
        machines=tuple(machine for machine in machines if machine.name in ever or not ever),
    )


def names_in(value: object) -> tuple[str, ...]:
    """Names of nodes, from a list of names or of records with a name."""
    names = [one.get("name") if isinstance(one, dict) else one for one in (value if isinstance(value, list) else [])]
    return tuple(name for name in names if isinstance(name, str))


def first_number(*values: object) -> float | None:
    """The first of the values that is a number."""
    return next((found for value in values if (found := number(value)) is not None), None)


def _int(value: object) -> int | None:
    return None if (found := number(value)) is None else int(found)


def _state(state: Mapping[str, Any]) -> str:
    return str(state.get("state") or "UNKNOWN")


def _nodes(
    spec: Mapping[str, Any], state: Mapping[str, Any], attempts: Sequence[JobStart]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of the nodes that the job was started for, of those that it ran on last, and of all that it ever had.
    With a count, the list in its record is of all nodes that it could be given."""
    asked = () if spec.get("count") else names_in(dict_of(spec, "cluster").get("nodes"))
    nodes = names_in(state.get("nodes")) or asked or (attempts[-1].nodes if attempts else ())
    ever = dict.fromkeys([*asked, *(name for attempt in attempts for name in attempt.nodes), *nodes])
    return asked, nodes, tuple(ever)


def _times(
    answer: Mapping[str, Any], state: Mapping[str, Any], log: Mapping[str, Any], points: Sequence[Point]
) -> tuple[float | None, float | None, float]:
    """When the job started and ended, and what is now (seconds since 1970). The files of a fetched folder end when it
    was fetched: "now" is then the time of the last line."""
    last = first_number(log.get("last"), points[-1].time if points else None)
    started = first_number(state.get("started"), log.get("first"), points[0].time if points else None)
    ended = first_number(state.get("ended"), last) if _state(state) in (*OVER, "UNKNOWN") else None
    now = first_number(answer.get("now") if answer.get("from_head") else None, last, answer.get("now"))
    return started, ended, now or 0.0


def _point(entry: Mapping[str, Any]) -> Point:
    plain = ("time", "tokens", "loss", "lr", "grad_norm", "tokens_per_s", "peak_share")
    return Point(
        step=number(entry.get("step")) or 0.0,
        steps=int(number(entry.get("steps")) or 1),
        rank_seconds=tuple(number(value) for value in list_of(entry, "rank_seconds")),
        **{name: number(entry.get(name)) for name in plain},
    )


def _validations(entries: object) -> tuple[Validation, ...]:
    return tuple(
        Validation(
            *(number(entry.get("step")) or 0.0, loss),
            *(number(entry.get(name)) for name in ("val_bits_per_byte", "val_perplexity")),
        )
        for entry in _dicts(entries)
        if (loss := number(entry.get("val_loss"))) is not None
    )


def _attempts(log: Mapping[str, Any], points: Sequence[Point]) -> tuple[JobStart, ...]:
    """From lines such as `attempt 2: 2 ranks on node1, node3`. A restart continued from the last earlier step in the
    metrics: steps done again have replaced their old lines."""
    found: list[JobStart] = []
    rows = _rows(log.get("attempts"))
    errors = [(number(row[0]) or 0.0, row[3]) for row in _rows(log.get("notes")) if row[3].startswith("error: ")]
    starts = [number(row[0]) or 0.0 for row in rows]
    for row in rows:
        when, text = number(row[0]) or 0.0, row[3]
        until = min((start for start in starts if start > when), default=float("inf"))
        why = next((said.removeprefix("error: ") for at, said in errors if when <= at < until), "")
        before = [point.step for point in points if point.time is not None and point.time < when]
        after = any(point.time is not None and point.time >= when for point in points)
        nodes = tuple(name for name in re.split(r",\s*", text.rpartition(" on ")[2]) if name)
        found.append(JobStart(when, nodes, before[-1] if found and before and after else None, why))
    return tuple(found)


def _paused(log: Mapping[str, Any]) -> float:
    """Total seconds between each end of the job and the attempt that resumed it."""
    starts = [number(row[0]) or 0.0 for row in _rows(log.get("attempts"))]
    ends = [end for raw in list_of(log, "ends") if (end := number(raw)) is not None]
    return sum(min((start for start in starts if start > end), default=end) - end for end in ends)


def _decisions(entries: object) -> tuple[tuple[float, str, float | None], ...]:
    """Of a manager: when it decided what, and the dollars that the job had cost until then."""
    return tuple(
        (number(one.get("time")) or 0.0, str(one.get("text") or ""), number(one.get("usd"))) for one in _dicts(entries)
    )


def _samples(entries: object) -> tuple[tuple[str, str], ...]:
    """Which model wrote which text."""
    return tuple((str(one.get("model") or ""), str(one["text"])) for one in _dicts(entries) if one.get("text"))


def _usage(answer: Mapping[str, Any]) -> dict[str, list[Usage]]:
    found: dict[str, list[Usage]] = {}
    for node in answer:
        for time, *used in (row for row in list_of(answer, node) if isinstance(row, list) and len(row) == 4):
            if (when := number(time)) is not None:
                cores, memory, network = map(number, used)
                found.setdefault(str(node), []).append((when, cores, memory, network))
    return found


def _rows(value: object) -> list[tuple[Any, str, str, str]]:
    rows = [row for row in (value if isinstance(value, list) else []) if isinstance(row, list) and len(row) == 4]
    return [(when, str(node), str(rank), str(text)) for when, node, rank, text in rows]


def _note(row: tuple[Any, str, str, str]) -> tuple[float, str, str]:
    when, node, rank, text = row
    return number(when) or 0.0, node if rank == "-" else f"{node} rank={rank}", text


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _slots(value: object) -> dict[str, int]:
    known = [(entry.get("name"), entry.get("slots")) for entry in _dicts(value)]
    return {name: slots for name, slots in known if isinstance(name, str) and isinstance(slots, int)}


def _seen_slots(disk: Mapping[str, Any]) -> dict[str, int]:
    """Ranks by node, from the newest checkpoint, which lists the node of every rank."""
    return dict(Counter(name for name in list_of(dict_of(disk, "newest"), "ranks") if isinstance(name, str)))


def _flat(answer: Mapping[str, Any]) -> dict[str, Any]:
    try:
        tables = tomllib.loads(str(answer.get("job_toml") or ""))
    except tomllib.TOMLDecodeError:
        return {}  # the page shows the text as it is
    sections = [(name, values) for name, values in tables.items() if isinstance(values, dict)]
    return {f"{name}.{key}": value for name, values in sections for key, value in values.items()}


def _command(spec: Mapping[str, Any], answer: Mapping[str, Any], nodes: Sequence[str]) -> str:
    """The command that runs the job again on as many nodes, with the job file that the page offers for download."""
    launcher = spec.get("launcher")
    other = ["--launcher", launcher] if isinstance(launcher, str) and launcher not in ("", "mpirun") else []
    if program := _program(spec, answer):
        counted = ["--nodes", str(len(nodes))] if nodes else []
        return shlex.join(["fab", "launch", *counted, "--", *map(str, list_of(program, "argv"))])
    words = ["fab", "train", f"{answer.get('id')}.toml", *(["--nodes", str(len(nodes))] if nodes else []), *other]
    return shlex.join(words)


def _program(spec: Mapping[str, Any], answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record of the user's program; empty: it is the trainer's job."""
    return dict_of(spec, "program") or dict_of(answer, "program")


def dict_of(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under a record's key; empty if there is none."""
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def list_of(record: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a record's key; empty if there is none."""
    found = record.get(key)
    return found if isinstance(found, list) else []
