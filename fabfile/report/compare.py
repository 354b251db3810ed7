"""Runs side by side: their results, and the settings and versions in which they differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fabfile.report import numbers
from fabfile.report.parse import dict_of
from fabfile.report.run import Run

_UNIMPORTANT = ("run.name", "run.directory")
Value = Callable[[Run], float | None]
_RESULTS: tuple[tuple[str, Value, Callable[[float | None], str]], ...] = (
    ("duration", lambda run: run.duration, numbers.span),
    ("steps", lambda run: run.last.step if run.points else None, numbers.plain),
    ("tokens", lambda run: run.tokens if run.points else None, numbers.count),
    ("tokens per second", lambda run: speed(run), numbers.count),
    ("share of the matmul peak", lambda run: peak(run), numbers.percent),
    ("last loss", lambda run: run.last.loss, numbers.fixed),
    ("best validation loss", lambda run: run.best.loss if run.best else None, numbers.fixed),
    ("its bits per byte", lambda run: run.best.bits_per_byte if run.best else None, numbers.fixed),
    ("restarts", lambda run: float(run.restarts) if run.attempts else None, numbers.plain),
    ("cost", lambda run: run.cost, numbers.money),
)


def speed(run: Run) -> float | None:
    """Tokens per second over all steps: the harmonic mean, as steps of one size differ in their time."""
    known = [(point.steps, point.tokens_per_s) for point in run.points if point.tokens_per_s]
    inverse = sum(steps / rate for steps, rate in known)
    return sum(steps for steps, _ in known) / inverse if inverse else None


def peak(run: Run) -> float | None:
    """The mean fraction of the processors' peak matmul speed, from 0 to 1."""
    known = [(point.steps, point.peak_share) for point in run.points if point.peak_share is not None]
    return sum(steps * share for steps, share in known) / sum(steps for steps, _ in known) if known else None


def results(runs: Sequence[Run]) -> list[list[str]]:
    """Rows of a name and each run's value; for two runs also the change from the first to the second."""
    pair = len(runs) == 2
    rows = [["state", *(run.state.lower() for run in runs), *([""] if pair else [])]]
    for name, value, form in _RESULTS:
        values = [value(run) for run in runs]
        if any(one is not None for one in values):
            rows.append([name, *map(form, values), *([numbers.change(*values)] if pair else [])])
    return rows


def differences(runs: Sequence[Run]) -> tuple[list[list[str]], int]:
    """(rows of a key and each run's value, for the keys that differ; the number of keys equal in all runs)."""
    settings = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for one in settings for key in one))
    rows = [[key, *(one.get(key, numbers.NOTHING) for one in settings)] for key in keys]
    different = [row for row in rows if len(set(row[1:])) > 1]
    return different, len(rows) - len(different)


def _settings(run: Run) -> dict[str, str]:
    found = {key: _as_toml(value) for key, value in run.config.items() if key not in _UNIMPORTANT}
    found |= {"nodes": ", ".join(run.all_nodes), "ranks": numbers.plain(run.ranks), "precision taken": run.precision}
    for name in sorted({name for machine in run.machines for name in versions(machine.ready)}):
        nodes_of: dict[str, list[str]] = {}
        for machine in run.machines:
            if machine.ready:
                nodes_of.setdefault(versions(machine.ready).get(name, "none"), []).append(machine.name)
        every = [one if len(nodes_of) == 1 else f"{one} on {' '.join(nodes)}" for one, nodes in nodes_of.items()]
        found[f"version of {name}"] = ", ".join(every)
    return {key: value for key, value in found.items() if value}


def _as_toml(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


def versions(ready: Mapping[str, Any]) -> dict[str, str]:
    """The software of a node's ready.json: name -> version."""
    return {str(name): str(value) for name, value in dict_of(ready, "versions").items()}
