"""Choose the charts of the report, and make their lines from the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
_MOST_NAMED = 4
"""Up to this many restarts are told one by one."""


def drawn(runs: Sequence[JobRun]) -> list[JobRun]:
    """The runs that are drawn, in their order: all, or the best of more than there are colours, by validation loss, or
    where that is not known by the last loss, after those."""

    def rank(index: int) -> tuple[bool, float]:
        best, last = runs[index].best, runs[index].last.loss
        return best is None, best.loss if best else float("inf") if last is None else last

    return [runs[index] for index in sorted(sorted(range(len(runs)), key=rank)[: len(COLOURS)])]


def _line(runs: Sequence[JobRun], index: int, points: Sequence[tuple[float, float]], **more: Any) -> ChartLine:
    """A line of the run with this index; named after its run if there are several."""
    of = runs[index].id if len(runs) > 1 else ""
    return ChartLine(**{"name": "", "colour": COLOURS[index]} | more, points=points, of=of, run=index)


def _lines(runs: Sequence[JobRun], value: Callable[[Point], float | None], name: str = "") -> list[ChartLine]:
    """A line for each run, of its points that have the value."""
    every = [[(point.step, found) for point in run.points if (found := value(point)) is not None] for run in runs]
    return [_line(runs, index, points, name=name) for index, points in enumerate(every)]


def charts_of(runs: Sequence[JobRun]) -> list[Chart]:
    """The charts that have at least one point, in the page's order."""
    every = [loss(runs), speed(runs), *_small_charts(runs), *(node_use(runs[0]) if len(runs) == 1 else [])]
    return [chart for chart in every if any(line.points for line in chart.lines)]


def loss(runs: Sequence[JobRun]) -> Chart:
    """The training loss as lines, the validation loss as dots; ticks where checkpoints were made."""
    lines = []
    for index, training in enumerate(_lines(runs, lambda point: point.loss, "training")):
        validations = [(one.step, one.loss) for one in runs[index].validations]
        colour = COLOURS[index] if len(runs) > 1 else "b"
        lines += [training, _line(runs, index, validations, name="validation", dots=True, colour=colour)]
    notes = ["Ticks on the axis: checkpoints."] if _has_ticks(runs) else []
    if any(run.width > 1 for run in runs):
        notes.append(f"Each point is the mean of {' and '.join(str(run.width) for run in runs)} steps.")
    begin, highest = _steep_start(lines)
    if begin is not None:
        notes.append(f"Not drawn, to show the rest: before step {numbers.count(begin)}, up to {highest:.3f}.")
    restarts, texts = _restarts(runs)
    if texts:
        notes.append(f"Dashed: {'; '.join(texts) if len(texts) <= _MOST_NAMED else f'{len(texts)} restarts'}.")
    marks = [*(_checkpoints(runs) if _has_ticks(runs) else []), *restarts]
    also: dict[str, Any] = {"marks": marks, "note": " ".join(notes), "begin": begin}
    return Chart(title="Loss", unit="nats per token", lines=lines, form=numbers.fixed, height=300, **also)


def _steep_start(lines: list[ChartLine]) -> tuple[float | None, float]:
    """(the end, the highest value) of a long run's steep start, which would make the rest of the loss look flat; None
    if there is no such start."""
    start = max((line.points[-1][0] for line in lines if line.points), default=0.0) * _STEEP
    steep = [[y for x, y in line.points if x < start] for line in lines]
    early = [y for values in steep for y in values]
    rest = [y for line in lines for x, y in line.points if x >= start]
    is_short = max(map(len, steep), default=0) < _LEAST_STEEP
    if is_short or not rest or max(early) - min(rest) < 2 * (max(rest) - min(rest)):
        return None, 0.0
    return start, max(early)


def speed(runs: Sequence[JobRun]) -> Chart:
    """Tokens per second of each run; of a single run also of each node."""
    nodes = runs[0].node_speeds() if len(runs) == 1 else {}
    own = [ChartLine(name, series, "quiet") for name, series in nodes.items()]
    own = own if len(own) > 1 else []
    note = "A node's own speed is that of its computing alone, without waiting for the others." if own else ""
    name = "all nodes" if len(runs) == 1 and len(runs[0].all_nodes) > 1 else ""
    lines = [*own, *_lines(runs, lambda point: point.tokens_per_s, name)]
    also: dict[str, Any] = {"from_zero": True, "marks": _restarts(runs)[0], "note": note}
    return Chart(title="Speed", unit="tokens per second", lines=lines, form=numbers.count, **also)


def _small_charts(runs: Sequence[JobRun]) -> list[Chart]:
    also: dict[str, Any] = {"from_zero": True, "marks": _restarts(runs)[0], "height": 150}
    norm, rate = _lines(runs, lambda point: point.grad_norm), _lines(runs, lambda point: point.lr)
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
    also: dict[str, Any] = {"from_zero": True, "height": 150, "along_time": True}
    for column, (title, unit) in enumerate(titles, start=1):
        lines = []
        for index, (node, rows) in enumerate(run.usage.items()):
            points = [(row[0] - start, value) for row in rows if (value := row[column]) is not None]
            colour = COLOURS[index] if len(run.usage) <= len(COLOURS) else "quiet"
            lines.append(ChartLine(node, points, colour))
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


def _checkpoints(runs: Sequence[JobRun]) -> list[Mark]:
    return [Mark(index, step, "checkpoint") for index, run in enumerate(runs) for step in saved_steps(run)]


def _restarts(runs: Sequence[JobRun]) -> tuple[list[Mark], list[str]]:
    """A mark and a text for each restart."""
    marks, texts = [], []
    for index, run in enumerate(runs):
        for before, after in pairwise(run.attempts):
            if after.after_step is not None:
                lost = [node for node in before.nodes if node not in after.nodes]
                without = f", without {', '.join(lost)}" if lost else ""
                of = f"{run.id}: " if len(runs) > 1 else ""
                texts.append(f"{of}restart after step {numbers.plain(after.after_step)}{without}")
                marks.append(Mark(index, after.after_step, "restart"))
    return marks, texts
