"""Choose the charts of the report, and make their lines from the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from fabfile.report import numbers
from fabfile.report.chart import Chart, ChartLine, Mark
from fabfile.report.run import JobRun, Point
from node.run_data import number

COLOURS = "abcdef"
"""Classes of the style sheet, one for each run of a page."""
_STEEP = 0.02
"""The fraction of a run's x axis, from its start, that the loss chart may leave out."""
_LEAST_STEEP = 2
"""The fewest points of a line in that start for which it is left out: shorter runs are drawn from their first step."""
_MOST_TICKS = 40
_NAMED_NODES = 4
"""Up to this many nodes are named in the chart."""

Points = Sequence[tuple[float, float]]


class Axis:
    """The x axis: steps, or tokens if the runs' steps differ in size."""

    def __init__(self, runs: Sequence[JobRun]) -> None:
        self.runs = runs
        batches = {run.batch for run in runs}
        self.in_tokens = len(batches) > 1 and None not in batches
        self.name = "tokens" if self.in_tokens else "step"

    def of(self, run: JobRun, step: float) -> float:
        """The place of a run's step on this axis."""
        return step * run.batch if self.in_tokens and run.batch else step

    def line(self, index: int, points: Points, name: str = "", **more: Any) -> ChartLine:
        """A line from (step, value) of the run with this index; named after its run if there are several."""
        run = self.runs[index]
        placed = [(self.of(run, step), value) for step, value in points]
        of = run.id if len(self.runs) > 1 else ""
        return ChartLine(name, placed, **{"colour": COLOURS[index]} | more, of=of, run=index, steps=points)

    def lines(self, value: Callable[[Point], float | None], name: str = "") -> list[ChartLine]:
        """A line for each run, of its points that have the value."""
        every = [
            [(point.step, found) for point in run.points if (found := value(point)) is not None] for run in self.runs
        ]
        return [self.line(index, points, name) for index, points in enumerate(every)]

    def mark(self, index: int, step: float, text: str, kind: str) -> Mark:
        """A mark at a step of the run with this index."""
        run = self.runs[index]
        named = f"{run.id}: {text}" if len(self.runs) > 1 else text
        return Mark(self.of(run, step), named, kind, COLOURS[index], run=index, step=step)


def charts_of(runs: Sequence[JobRun]) -> list[Chart]:
    """The charts that have at least one point, in the page's order."""
    every = [loss(runs), speed(runs), *_small_charts(runs), *(node_use(runs[0]) if len(runs) == 1 else [])]
    return [chart for chart in every if any(line.points for line in chart.lines)]


def loss(runs: Sequence[JobRun]) -> Chart:
    """The training loss as lines, the validation loss as dots; ticks where checkpoints were made."""
    axis = Axis(runs)
    lines = []
    for index, training in enumerate(axis.lines(lambda point: point.loss, "training")):
        validations = [(one.step, one.loss) for one in runs[index].validations]
        colour = COLOURS[index] if len(runs) > 1 else "b"
        lines += [training, axis.line(index, validations, "validation", dots=True, colour=colour)]
    notes = ["Ticks on the axis: checkpoints."] if _has_ticks(runs) else []
    if any(run.width > 1 for run in runs):
        notes.append(f"Each point is the mean of {' and '.join(str(run.width) for run in runs)} steps.")
    lines, cut = _without_steep_start(lines)
    if cut:
        notes.append(f"Not drawn, to show the rest: before {axis.name} {numbers.count(cut[0])}, up to {cut[1]:.3f}.")
    begin = cut[0] if cut and not axis.in_tokens else None
    annotations = [*(_checkpoints(axis) if _has_ticks(runs) else []), *_restarts(axis)]
    also: dict[str, Any] = {"annotations": annotations, "x_name": axis.name, "note": " ".join(notes), "begin": begin}
    return Chart(title="Loss", unit="nats per token", lines=lines, form=numbers.fixed, height=300, **also)


def _without_steep_start(lines: list[ChartLine]) -> tuple[list[ChartLine], tuple[float, float] | None]:
    """The lines without a long run's steep start, which would make the rest of the loss look flat, and (its end, its
    highest value); None if nothing was left out."""
    start = max((line.points[-1][0] for line in lines if line.points), default=0.0) * _STEEP
    steep = [[y for x, y in line.points if x < start] for line in lines]
    early = [y for values in steep for y in values]
    rest = [y for line in lines for x, y in line.points if x >= start]
    is_short = max(map(len, steep), default=0) < _LEAST_STEEP
    if is_short or not rest or max(early) - min(rest) < 2 * (max(rest) - min(rest)):
        return lines, None
    kept = [replace(line, points=[point for point in line.points if point[0] >= start]) for line in lines]
    return kept, (start, max(early))


def speed(runs: Sequence[JobRun]) -> Chart:
    """Tokens per second of each run; of a single run also of each node."""
    axis = Axis(runs)
    nodes = runs[0].node_speeds() if len(runs) == 1 else {}
    own = [ChartLine(name, series, "quiet", labelled=len(nodes) <= _NAMED_NODES) for name, series in nodes.items()]
    own = own if len(own) > 1 else []
    note = "A node's own speed is that of its computing alone, without waiting for the others." if own else ""
    name = "all nodes" if len(runs) == 1 and len(runs[0].all_nodes) > 1 else ""
    lines = [*own, *axis.lines(lambda point: point.tokens_per_s, name)]
    also: dict[str, Any] = {"from_zero": True, "annotations": _restarts(axis), "x_name": axis.name}
    return Chart(title="Speed", unit="tokens per second", lines=lines, form=numbers.count, note=note, **also)


def _small_charts(runs: Sequence[JobRun]) -> list[Chart]:
    axis = Axis(runs)
    also: dict[str, Any] = {"from_zero": True, "annotations": _restarts(axis), "x_name": axis.name, "height": 150}
    norm, rate = axis.lines(lambda point: point.grad_norm), axis.lines(lambda point: point.lr)
    return [
        Chart(title="Gradient norm", unit="before clipping", lines=norm, form=numbers.plain, **also),
        Chart(title="Learning rate", unit="", lines=rate, form=numbers.small, **also),
    ]


def node_use(run: JobRun) -> list[Chart]:
    """Processor, memory and network use of each node over the time of the run."""
    first = min((rows[0][0] for rows in run.usage.values() if rows), default=0.0)
    start = first if run.started is None else run.started
    charts = []
    titles = (("Processors", "cores busy"), ("Memory", "GiB"), ("Network", "MB per second"))
    also: dict[str, Any] = {"from_zero": True, "x_name": "minute", "height": 150, "along_time": True}
    for column, (title, unit) in enumerate(titles, start=1):
        lines = []
        for index, (node, rows) in enumerate(run.usage.items()):
            seconds = [(row[0] - start, value) for row in rows if (value := row[column]) is not None]
            minutes = [(second / 60, value) for second, value in seconds]
            colour = COLOURS[index] if len(run.usage) <= len(COLOURS) else "quiet"
            lines.append(ChartLine(node, minutes, colour, labelled=len(run.usage) <= _NAMED_NODES, steps=seconds))
        charts.append(Chart(title=title, unit=unit, lines=lines, **also))
    return charts


def saved_steps(run: JobRun) -> list[float]:
    """The steps with a checkpoint: at the job's interval, after its last step, and those on the disk."""
    every = number(run.config.get("checkpoint.every"))
    last = run.last.step
    steps = {float(step) for step in run.on_disk}
    if every and last and last / every < 500:  # more ticks would merge into a bar
        steps |= {every * index for index in range(1, int(last // every) + 1)}
    if last and run.state in ("SUCCEEDED", "CANCELLED") and (not run.on_disk or last in run.on_disk):
        steps.add(last)
    return sorted(steps)


def _has_ticks(runs: Sequence[JobRun]) -> bool:
    """Whether the checkpoints are few enough for separate ticks."""
    return 0 < max(len(saved_steps(run)) for run in runs) <= _MOST_TICKS


def _checkpoints(axis: Axis) -> list[Mark]:
    steps = [(index, step) for index, run in enumerate(axis.runs) for step in saved_steps(run)]
    return [axis.mark(index, step, f"checkpoint of step {numbers.plain(step)}", "checkpoint") for index, step in steps]


def _restarts(axis: Axis) -> list[Mark]:
    annotations = []
    for index, run in enumerate(axis.runs):
        for before, after in pairwise(run.attempts):
            if after.after_step is not None:
                lost = [node for node in before.nodes if node not in after.nodes]
                without = f", without {', '.join(lost)}" if lost else ""
                text = f"restart after step {numbers.plain(after.after_step)}{without}"
                annotations.append(axis.mark(index, after.after_step, text, "restart"))
    return annotations
