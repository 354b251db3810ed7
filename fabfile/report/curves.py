"""Which lines of one run, or of two, go into which chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from fabfile.on_node.report import number
from fabfile.report import numbers
from fabfile.report.chart import Chart, Line, Mark, draw
from fabfile.report.facts import Point, Run
from fabfile.report.markup import Markup
from fabfile.report.speeds import by_node

_COLOURS = "ab"
_STEEP = 0.02
"""The part of a run that may be left out of the chart of the loss."""
_MOST_TICKS = 40
_NAMED_NODES = 4
"""So many nodes have their names in the chart; more would be a hedge."""


class Axis:
    """What runs are laid out along: steps, or tokens where two runs' steps are not of the same size."""

    def __init__(self, runs: Sequence[Run]) -> None:
        batches = {number(run.config.get("train.global_batch_tokens")) for run in runs}
        self.in_tokens = len(batches) > 1 and None not in batches
        self.name = "tokens" if self.in_tokens else "step"

    def of(self, run: Run, step: float) -> float:
        batch = number(run.config.get("train.global_batch_tokens"))
        return step * batch if self.in_tokens and batch else step


def loss(runs: Sequence[Run]) -> Markup:
    axis = Axis(runs)
    lines = []
    for run, colour in zip(runs, _COLOURS, strict=False):
        of = run.id if len(runs) > 1 else ""
        lines.append(Line("training", _values(run, axis, lambda point: point.loss), colour, of=of))
        dots = [(axis.of(run, one.step), one.loss) for one in run.validations]
        lines.append(Line("validation", dots, colour if of else "b", dots=True, of=of))
    notes = ["Ticks on the axis: checkpoints."] if _ticked(runs) else []
    if any(run.width > 1 for run in runs):
        notes.append(f"Each point is the mean of {' and '.join(str(run.width) for run in runs)} steps.")
    lines, cut = _settled(lines)
    if cut:
        notes.append(f"Not drawn, to show the rest: before {axis.name} {numbers.count(cut[0])}, up to {cut[1]:.3f}.")
    return draw(Chart(title="Loss", unit="nats per token", lines=lines, shown=numbers.fixed, marks=_marks(runs, axis),
                      x_name=axis.name, height=300, note=" ".join(notes)))  # fmt: skip


def _settled(lines: list[Line]) -> tuple[list[Line], tuple[float, float] | None]:
    """Without the steep first part of a long run, where the rest would be flat beneath it: the lines, and where what
    is left out ends and how high it was."""
    end = max((line.points[-1][0] for line in lines if line.points), default=0.0)
    start = end * _STEEP
    early = [y for line in lines for x, y in line.points if x < start]
    rest = [y for line in lines for x, y in line.points if x >= start]
    if len(early) < _STEEP * 100 or not rest or max(early) - min(rest) < 2 * (max(rest) - min(rest)):
        return lines, None
    kept = [replace(line, points=[point for point in line.points if point[0] >= start]) for line in lines]
    return kept, (start, max(early))


def speed(runs: Sequence[Run]) -> Markup:
    axis = Axis(runs)
    lines = []
    for run, colour in zip(runs, _COLOURS, strict=False):
        name, of = ("", run.id) if len(runs) > 1 else ("all nodes" if len(run.all_nodes) > 1 else "", "")
        if len(runs) == 1:
            nodes = by_node(run)
            several = {name: series for name, series in nodes.items() if len(nodes) > 1}
            lines += [
                Line(name, series, "quiet", labelled=len(nodes) <= _NAMED_NODES) for name, series in several.items()
            ]
        lines.append(Line(name, _values(run, axis, lambda point: point.tokens_per_s), colour, of=of))
    each = len(lines) > len(runs)
    note = "A node's own speed is that of its computing alone, without waiting for the others." if each else ""
    return draw(Chart(title="Speed", unit="tokens per second", lines=lines, shown=numbers.count, from_zero=True,
                      marks=_marks(runs, axis, only="restart"), x_name=axis.name, note=note))  # fmt: skip


def small_multiples(runs: Sequence[Run]) -> list[Markup]:
    """The gradient norm and the learning rate."""
    wanted: list[tuple[str, str, Callable[[Point], float | None]]] = [
        ("Gradient norm", "before clipping", lambda point: point.grad_norm),
        ("Learning rate", "", lambda point: point.lr),
    ]
    axis = Axis(runs)
    drawn = []
    for title, unit, value in wanted:
        lines = [
            Line("", _values(run, axis, value), colour, of=run.id if len(runs) > 1 else "")
            for run, colour in zip(runs, _COLOURS, strict=False)
        ]
        shown = numbers.small if title == "Learning rate" else numbers.plain
        marks = _marks(runs, axis, only="restart")
        drawn.append(draw(Chart(title=title, unit=unit, lines=lines, shown=shown, from_zero=True, marks=marks,
                                x_name=axis.name, height=150)))  # fmt: skip
    return drawn


def saved_steps(run: Run) -> list[float]:
    """Where checkpoints were made: as often as the job says, after its last step, and whatever else is on the disk."""
    every = number(run.config.get("checkpoint.every"))
    last = run.last.step
    steps = {float(step) for step in run.on_disk}
    if every and last and last / every < 500:  # more would be a bar, not ticks
        steps |= {every * index for index in range(1, int(last // every) + 1)}
    if last and run.state in ("SUCCEEDED", "CANCELLED") and (not run.on_disk or last in run.on_disk):
        steps.add(last)
    return sorted(steps)


def _ticked(runs: Sequence[Run]) -> bool:
    """Whether the checkpoints are so few that ticks tell them apart."""
    return 0 < max(len(saved_steps(run)) for run in runs) <= _MOST_TICKS


def _marks(runs: Sequence[Run], axis: Axis, only: str = "") -> list[Mark]:
    marks = []
    for run, colour in zip(runs, _COLOURS, strict=False):
        name = f"{run.id}: " if len(runs) > 1 else ""
        if not only and _ticked(runs):
            marks += [
                Mark(axis.of(run, step), f"{name}checkpoint of step {numbers.plain(step)}", "checkpoint", colour)
                for step in saved_steps(run)
            ]
        for before, after in pairwise(run.attempts):
            if after.after_step is not None:
                lost = [node for node in before.nodes if node not in after.nodes]
                without = f", without {', '.join(lost)}" if lost else ""
                text = f"{name}restart after step {numbers.plain(after.after_step)}{without}"
                marks.append(Mark(axis.of(run, after.after_step), text, "restart", colour, "restart"))
    return marks


def _values(run: Run, axis: Axis, value: Callable[[Point], float | None]) -> list[tuple[float, float]]:
    return [(axis.of(run, point.step), found) for point in run.points if (found := value(point)) is not None]
