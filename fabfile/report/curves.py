"""Which lines of one run, or of two, go into which chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from fabfile.report import numbers
from fabfile.report.chart import Chart, Line, Mark
from fabfile.report.facts import Point, Run
from fabfile.report.speeds import by_node
from node.run_data import number

COLOURS = "abcdef"
"""Classes of the style sheet, one for each run of a page."""
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

    def laid(self, run: Run, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Points of a run along steps, along this axis."""
        return [(self.of(run, step), value) for step, value in points]


def loss(runs: Sequence[Run]) -> Chart:
    axis = Axis(runs)
    lines = []
    for number_of, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        of = run.id if len(runs) > 1 else ""
        steps = _values(run, lambda point: point.loss)
        lines.append(Line("training", axis.laid(run, steps), colour, of=of, run=number_of, steps=steps))
        steps = [(one.step, one.loss) for one in run.validations]
        dots = axis.laid(run, steps)
        lines.append(Line("validation", dots, colour if of else "b", dots=True, of=of, run=number_of, steps=steps))
    notes = ["Ticks on the axis: checkpoints."] if _ticked(runs) else []
    if any(run.width > 1 for run in runs):
        notes.append(f"Each point is the mean of {' and '.join(str(run.width) for run in runs)} steps.")
    lines, cut = _settled(lines)
    if cut:
        notes.append(f"Not drawn, to show the rest: before {axis.name} {numbers.count(cut[0])}, up to {cut[1]:.3f}.")
    return Chart(
        title="Loss",
        unit="nats per token",
        lines=lines,
        shown=numbers.fixed,
        marks=_marks(runs, axis),
        x_name=axis.name,
        height=300,
        note=" ".join(notes),
        begin=cut[0] if cut and not axis.in_tokens else None,
    )


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


def speed(runs: Sequence[Run]) -> Chart:
    axis = Axis(runs)
    lines = []
    for number_of, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        name, of = ("", run.id) if len(runs) > 1 else ("all nodes" if len(run.all_nodes) > 1 else "", "")
        if len(runs) == 1:
            nodes = by_node(run)
            several = {name: series for name, series in nodes.items() if len(nodes) > 1}
            lines += [
                Line(name, series, "quiet", labelled=len(nodes) <= _NAMED_NODES) for name, series in several.items()
            ]
        steps = _values(run, lambda point: point.tokens_per_s)
        lines.append(Line(name, axis.laid(run, steps), colour, of=of, run=number_of, steps=steps))
    each = len(lines) > len(runs)
    note = "A node's own speed is that of its computing alone, without waiting for the others." if each else ""
    return Chart(
        title="Speed",
        unit="tokens per second",
        lines=lines,
        shown=numbers.count,
        from_zero=True,
        marks=_marks(runs, axis, only="restart"),
        x_name=axis.name,
        note=note,
    )


def small_multiples(runs: Sequence[Run]) -> list[Chart]:
    """The gradient norm and the learning rate."""
    wanted: list[tuple[str, str, Callable[[Point], float | None]]] = [
        ("Gradient norm", "before clipping", lambda point: point.grad_norm),
        ("Learning rate", "", lambda point: point.lr),
    ]
    axis = Axis(runs)
    charts = []
    for title, unit, value in wanted:
        lines = []
        for number_of, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
            steps, of = _values(run, value), run.id if len(runs) > 1 else ""
            lines.append(Line("", axis.laid(run, steps), colour, of=of, run=number_of, steps=steps))
        charts.append(
            Chart(
                title=title,
                unit=unit,
                lines=lines,
                shown=numbers.small if title == "Learning rate" else numbers.plain,
                from_zero=True,
                marks=_marks(runs, axis, only="restart"),
                x_name=axis.name,
                height=150,
            )
        )
    return charts


def use_of_nodes(run: Run) -> list[Chart]:
    """Processors, memory and network of each node, along the minutes of the run."""
    start = (
        run.started if run.started is not None else min((rows[0][0] for rows in run.usage.values() if rows), default=0)
    )
    wanted = (("Processors", "cores busy", 1), ("Memory", "GiB", 2), ("Network", "MB per second", 3))
    charts = []
    for title, unit, column in wanted:
        lines = []
        for index, (node, rows) in enumerate(run.usage.items()):
            seconds = [(row[0] - start, value) for row in rows if (value := row[column]) is not None]
            points = [(second / 60, value) for second, value in seconds]
            colour = COLOURS[index] if len(run.usage) <= len(COLOURS) else "quiet"
            lines.append(Line(node, points, colour, labelled=len(run.usage) <= _NAMED_NODES, steps=seconds))
        charts.append(
            Chart(
                title=title,
                unit=unit,
                lines=lines,
                shown=numbers.plain,
                from_zero=True,
                x_name="minute",
                height=150,
                along_time=True,
            )
        )
    return charts


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
    for index, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        name = f"{run.id}: " if len(runs) > 1 else ""
        if not only and _ticked(runs):
            for step in saved_steps(run):
                text = f"{name}checkpoint of step {numbers.plain(step)}"
                marks.append(Mark(axis.of(run, step), text, "checkpoint", colour, run=index, step=step))
        for before, after in pairwise(run.attempts):
            if after.after_step is not None:
                lost = [node for node in before.nodes if node not in after.nodes]
                without = f", without {', '.join(lost)}" if lost else ""
                step = after.after_step
                text = f"{name}restart after step {numbers.plain(step)}{without}"
                marks.append(Mark(axis.of(run, step), text, "restart", colour, "restart", run=index, step=step))
    return marks


def _values(run: Run, value: Callable[[Point], float | None]) -> list[tuple[float, float]]:
    """(step, value) of all points that have one."""
    return [(point.step, found) for point in run.points if (found := value(point)) is not None]
