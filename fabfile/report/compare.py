"""Runs side by side: what was different about them, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fabfile.report import numbers
from fabfile.report.facts import Run, shown
from fabfile.report.markup import Markup, element, join, table

_UNIMPORTANT = ("run.name", "run.directory")

Value = Callable[[Run], float | None]
RESULTS: tuple[tuple[str, Value, Callable[[float | None], str]], ...] = (
    ("duration", lambda run: run.duration, numbers.span),
    ("steps", lambda run: run.last.step if run.points else None, numbers.plain),
    ("tokens", lambda run: run.tokens if run.points else None, numbers.count),
    ("tokens per second", lambda run: speed(run), numbers.count),
    ("share of the matmul peak", lambda run: peak(run), numbers.percent),
    ("last loss", lambda run: run.last.loss, numbers.fixed),
    ("best validation loss", lambda run: run.best.loss if run.best else None, numbers.fixed),
    ("its bits per byte", lambda run: run.best.bits_per_byte if run.best else None, numbers.fixed),
    ("restarts", lambda run: float(restarts(run)) if run.attempts else None, numbers.plain),
    ("cost", lambda run: run.cost, numbers.money),
)


def speed(run: Run) -> float | None:
    """Tokens a second over all steps, each as long as it was."""
    known = [(point.steps, point.tokens_per_s) for point in run.points if point.tokens_per_s]
    inverse = sum(steps / rate for steps, rate in known)
    return sum(steps for steps, _ in known) / inverse if inverse else None


def peak(run: Run) -> float | None:
    known = [(point.steps, point.peak_share) for point in run.points if point.peak_share is not None]
    return sum(steps * share for steps, share in known) / sum(steps for steps, _ in known) if known else None


def restarts(run: Run) -> int:
    return max(0, len(run.attempts) - 1)


def results(runs: Sequence[Run]) -> Markup:
    """A column for each run; of two, the change from the first to the second as well."""
    pair = len(runs) == 2
    rows: list[list[object]] = [["state", *(run.state.lower() for run in runs), *([""] if pair else [])]]
    for name, value, form in RESULTS:
        values = [value(run) for run in runs]
        if any(one is not None for one in values):
            change = [numbers.change(values[0], values[1])] if pair else []
            rows.append([name, *map(form, values), *change])
    return table(_heading(runs, *(["change"] if pair else [])), rows, "figures")


def differences(runs: Sequence[Run]) -> Markup:
    """The keys of the configuration and the versions that differ; how many are the same is said."""
    each = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for one in each for key in one))
    rows: list[list[object]] = []
    for key in keys:
        values = [one.get(key, numbers.NOTHING) for one in each]
        rows += [[key, *values]] if len(set(values)) > 1 else []
    same = len(keys) - len(rows)
    said = f"{same} more {'setting is' if same == 1 else 'settings and versions are'} the same." if same else ""
    if not rows:
        return element("p", "Nothing: configuration, nodes and versions are the same." if keys else "Not known.")
    return join([table(_heading(runs), rows), element("p", said, class_="note")])


def _heading(runs: Sequence[Run], *more: str) -> list[object]:
    return ["", *(element("span", run.id, class_=colour) for run, colour in zip(runs, "abcdef", strict=False)), *more]


def _settings(run: Run) -> dict[str, str]:
    found = {key: shown(value) for key, value in run.config.items() if key not in _UNIMPORTANT}
    found |= {"nodes": ", ".join(run.all_nodes), "ranks": numbers.plain(run.ranks), "precision taken": run.precision}
    for name in sorted({name for machine in run.machines for name in versions(machine.ready)}):
        told: dict[str, list[str]] = {}
        for machine in run.machines:
            if machine.ready:
                told.setdefault(versions(machine.ready).get(name, "none"), []).append(machine.name)
        alone = len(told) == 1
        found[f"version of {name}"] = ", ".join(
            one if alone else f"{one} on {' '.join(on)}" for one, on in told.items()
        )
    return {key: value for key, value in found.items() if value}


def versions(ready: object) -> dict[str, str]:
    found = ready.get("versions") if hasattr(ready, "get") else None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
