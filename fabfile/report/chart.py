"""A line chart: its content, the data that templates/interactive.js draws it from with uPlot, and a plain outline of it
for a reader without scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fabfile.report import numbers
from fabfile.report.run import JobRun

WIDTH, HEIGHT = 1000, 300
"""Size of an outline's coordinates; the page stretches it to the available width."""


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    """(step, value), or (second, value) where Chart.along_time is set."""
    colour: str
    """A class of the style sheet: a to f, or quiet for one of many."""
    dots: bool = False
    """Drawn as dots with a thin line between them: some steps have no value."""
    of: str = ""
    """The id of its run, if the page has several."""
    run: int = 0
    """Index of its run among the runs of the page."""

    @property
    def full_name(self) -> str:
        """Its name with its run's."""
        return f"{self.of} {self.name}".strip() or "value"


@dataclass(frozen=True)
class Mark:
    """Something that happened after a step of a run."""

    run: int
    step: float
    kind: str
    """checkpoint: a tick on the axis; restart: a line through the chart."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The content of a chart."""

    title: str
    unit: str
    lines: Sequence[ChartLine]
    form: Callable[[float | None], str] = numbers.plain
    """Formats a value."""
    from_zero: bool = False
    marks: Sequence[Mark] = ()
    height: int = 240
    """Height of the plot, in pixels."""
    note: str = ""
    begin: float | None = None
    """The first step drawn, if the steps before it would make the rest look flat."""
    along_time: bool = False
    """Its x axis is the time since the run's start, whatever the other charts have."""


def outline(chart: Chart) -> dict[str, Any]:
    """{"lines": [(colour or kind of mark, its points for an SVG, its ends in words)], "axes": their ends in words}."""
    drawn = [(line, [(x, y) for x, y in line.points if x >= (chart.begin or 0.0)]) for line in chart.lines]
    drawn = [(line, points) for line, points in drawn if points]
    xs, ys = zip(*(point for _, points in drawn for point in points), strict=True)
    left, low, high = min(xs), min(0.0, *ys) if chart.from_zero else min(ys), max(ys)
    across, up = max(xs) - left or 1.0, high - low or 1.0
    lines = [
        (
            line.colour,
            " ".join(f"{(x - left) / across * WIDTH:.1f},{(high - y) / up * HEIGHT:.1f}" for x, y in points),
            f"{line.full_name}: from {chart.form(points[0][1])} to {chart.form(points[-1][1])}",
        )
        for line, points in drawn
    ]
    for mark in chart.marks:
        x, top = (mark.step - left) / across * WIDTH, 0 if mark.kind == "restart" else 0.96 * HEIGHT
        lines.append((mark.kind, f"{x:.1f},{top:.1f} {x:.1f},{HEIGHT}", ""))
    across_text = f"{'seconds' if chart.along_time else 'steps'} {numbers.count(left)} to {numbers.count(max(xs))}"
    return {"lines": lines, "axes": f"Across: {across_text}. Up: {chart.form(low)} to {chart.form(high)}."}


def chart_data(runs: Sequence[JobRun], charts: Sequence[Chart]) -> dict[str, Any]:
    """{"x": unit, "units": [[unit, name], ...], "runs": [...], "charts": [...]}; a unit is step, time or tokens. `x` is
    the first one shown: tokens if the runs' steps differ in size."""
    known = [_along(run) for run in runs]
    drawn = [
        {
            "along": "time" if chart.along_time else "step",
            "height": chart.height + 20,
            "fromZero": chart.from_zero,
            "begin": chart.begin,
            "lines": [_line(line, known[line.run]["step"]) for line in chart.lines if line.points],
            "marks": [{"run": mark.run, "x": mark.step, "kind": mark.kind} for mark in chart.marks],
        }
        for chart in charts
    ]
    units = [["step", "steps"], *([unit, unit] for unit in ("time", "tokens") if all(run[unit] for run in known))]
    in_tokens = len({run.batch for run in runs}) > 1 and ["tokens", "tokens"] in units
    return {"x": "tokens" if in_tokens else "step", "units": units, "runs": known, "charts": drawn}


def _along(run: JobRun) -> dict[str, list[float]]:
    """For each known step the seconds of training until then (restarts and pauses left out) and the tokens."""
    found: dict[str, list[float]] = {"step": [], "time": [], "tokens": []}
    total, before = 0.0, 0.0
    for point in run.points:
        if point.tokens and point.step and point.tokens_per_s:
            took = point.steps * (point.tokens / point.step) * run.own_share / point.tokens_per_s
            total, before = total + (took if point.step > before else 0.0), point.step
            found["step"].append(_short(point.step))
            found["time"].append(round(total, 1))
            found["tokens"].append(_short(point.tokens))
    return found


def _line(line: ChartLine, steps: Sequence[float]) -> dict[str, Any]:
    """Its points as "y" alone where they are at all of its run's steps, which the page has once."""
    points = [(_short(x), _short(y)) for x, y in line.points]
    at_steps = [x for x, _ in points] == list(steps)
    return {
        "name": f"{line.of} {line.name}".strip(),
        "colour": line.colour,
        "dots": line.dots,
        "run": line.run,
        **({"y": [y for _, y in points]} if at_steps else {"points": points}),
    }


def _short(value: float) -> float:
    """Five digits: more than a screen shows."""
    return int(value) if value == int(value) else float(f"{value:.5g}")
