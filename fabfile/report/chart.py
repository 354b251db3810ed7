"""A line chart: its content, the places of its lines and texts for templates/chart.html, and the data that
templates/interactive.js draws it from.

The plot has coordinates from 0 to 1000 both ways and is stretched to the available width; the texts are HTML around
it, at their own size. So the same page is readable on a phone, a desktop and paper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fabfile.report import numbers
from fabfile.report.run import JobRun

MOST_DOTS = 30
"""More dots than this are drawn as one bold line."""
STRIPS = 200
"""Places along a chart that show their values when pointed at."""
_SIDE = 1000
_ROOM, _ROOM_QUIET = 34, 17
"""Pixels that a line's name takes: two rows of text, one for the quiet ones."""
_MOST_NAMED = 4


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    """A class of the style sheet: a to f, or quiet for one of many."""
    dots: bool = False
    """Drawn as dots with a thin line between them: some steps have no value."""
    labelled: bool = True
    of: str = ""
    """The id of its run, if the page has several."""
    run: int = 0
    """Index of its run among the runs of the page."""
    steps: Sequence[tuple[float, float]] = ()
    """All points along steps (or seconds, see Chart.along_time); `points` may be along tokens and leave some out."""

    @property
    def full_name(self) -> str:
        """Its name with its run's."""
        return f"{self.of} {self.name}".strip() or "value"


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step."""

    x: float
    text: str
    kind: str
    """checkpoint: a tick on the axis; restart: a line through the chart, with the mark's name beside it."""
    colour: str
    run: int
    step: float
    """`x` as a step of its run."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The content of a chart."""

    title: str
    unit: str
    lines: Sequence[ChartLine]
    form: Callable[[float | None], str] = numbers.plain
    """Formats a value."""
    from_zero: bool = False
    annotations: Sequence[Mark] = ()
    x_name: str = "step"
    height: int = 240
    """Height of the plot, in pixels."""
    note: str = ""
    begin: float | None = None
    """The first step drawn, if the steps before it would make the rest look flat."""
    along_time: bool = False
    """Its x axis is the time since the run's start, whatever the other charts have."""


class Drawing:
    """The layout of a chart with at least one point: coordinates from 0 to 1000 in the plot, per cent around it."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.lines = [line for line in chart.lines if line.points]
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        self._x_min, self._x_max = min(0.0, *xs), max(xs)
        if self._x_max <= self._x_min:
            self._x_max = self._x_min + 1
        every = numbers.ticks(self._x_min, self._x_max, 4)
        self._x_ticks = [tick for tick in every if self._x_min <= tick <= self._x_max and tick == int(tick)]
        self._y_ticks = numbers.ticks(min([0.0, *ys] if chart.from_zero else ys), max(ys))

    def x(self, value: float) -> float:
        """The place of a value of the x axis."""
        return _SIDE * (value - self._x_min) / (self._x_max - self._x_min)

    def y(self, value: float) -> float:
        """The place of a value of the y axis, from the top."""
        low, high = self._y_ticks[0], self._y_ticks[-1]
        return _SIDE * (high - value) / (high - low)

    @property
    def summary(self) -> str:
        """The chart in words, for a reader who does not see it."""
        form = self.chart.form
        ends = [(line.full_name, form(line.points[0][1]), form(line.points[-1][1])) for line in self.lines]
        return f"{self.chart.title}: " + "; ".join(f"{name} from {first} to {last}" for name, first, last in ends)

    def y_labels(self) -> list[tuple[float, str]]:
        """(top, text)"""
        return [
            (self.y(tick) / 10, text) for tick, text in zip(self._y_ticks, numbers.axis(self._y_ticks), strict=True)
        ]

    def x_labels(self) -> list[tuple[float, str, str]]:
        """(percent from the left, classes, text)"""
        labels = []
        for index, (value, number) in enumerate(zip(self._x_ticks, numbers.axis(self._x_ticks), strict=True)):
            percent = self.x(value) / 10
            edge = " first" if percent < 4 else " last" if percent > 96 else ""
            text = number if index else f"{self.chart.x_name} {number}"
            labels.append((percent, f"x{edge}{' odd' if index % 2 else ''}", text))
        return labels

    def mark_names(self) -> list[tuple[float, Mark]]:
        """(percent from the left, mark) of the restarts, if they are few enough to be readable."""
        named = [mark for mark in self.chart.annotations if mark.kind == "restart"]
        return [(self.x(mark.x) / 10, mark) for mark in named] if len(named) <= _MOST_NAMED else []

    def paths(self) -> list[tuple[str, str, str]]:
        """(shape, classes, text when pointed at) of the grid, the marks and the lines."""
        found = [(f"M0 {self.y(value):.1f}h{_SIDE}", "grid", "") for value in self._y_ticks]
        for mark in self.chart.annotations:
            x = min(_SIDE, max(0.0, self.x(mark.x)))
            shape = f"M{x:.1f} 0V{_SIDE}" if mark.kind == "restart" else f"M{x:.1f} {_SIDE}v-30"
            found.append((shape, f"{mark.kind} {mark.colour}", mark.text))
        for line in self.lines:
            places = [f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in line.points]
            joined, dots = "M" + "L".join(places), "".join(f"M{place}h.01" for place in places)
            if len(places) > (MOST_DOTS if line.dots else 1):
                shapes = [("bold" if line.dots else "line", joined)]
            else:
                shapes = [("thin", joined)] * (len(places) > 1) + [("halo", dots), ("dots", dots)]
            found += [(shape, f"{kind} {line.colour}", "") for kind, shape in shapes]
        return found

    def strips(self) -> list[tuple[float, float, str]]:
        """(left, width, text): for each strip the values at its middle, of the lines with a point in it."""
        every = sorted({x for line in self.lines for x, _ in line.points})
        middles = every if len(every) <= STRIPS else [every[len(every) * i // STRIPS] for i in range(STRIPS)]
        edges = [self._x_min, *((a + b) / 2 for a, b in pairwise(middles)), self._x_max]
        found = []
        for x, start, end in zip(middles, edges, edges[1:], strict=False):
            texts = [f"{self.chart.x_name} {numbers.count(x)}"]
            for line in self.lines:
                if (value := _value_at(line, x, start, end)) is not None:
                    texts.append(f"{line.full_name}: {self.chart.form(value)}")
            texts += [mark.text for mark in self.chart.annotations if start <= mark.x < end]
            found.append((self.x(start), max(0.5, self.x(end) - self.x(start)), "\n".join(texts)))
        return found

    def names(self) -> list[tuple[float, ChartLine, str]]:
        """(top, line, last value): the lines' names at their ends, moved apart where two would overlap."""
        near = self._x_min + 0.98 * (self._x_max - self._x_min)
        lines = [
            line for line in self.lines if line.labelled and (line.colour != "quiet" or line.points[-1][0] >= near)
        ]
        named = sorted((self.y(line.points[-1][1]) / 10, index) for index, line in enumerate(lines))
        lines = [lines[index] for _, index in named]
        tops = [top for top, _ in named]
        halves = [(_ROOM_QUIET if line.colour == "quiet" else _ROOM) / self.chart.height * 50 for line in lines]
        ceiling, floor = 0.0, 100.0
        for index, half in enumerate(halves):
            tops[index] = max(tops[index], ceiling + half)
            ceiling = tops[index] + half
        for index, half in reversed(list(enumerate(halves))):
            tops[index] = min(tops[index], floor - half)
            floor = tops[index] - half
        return [(top, line, self.chart.form(line.points[-1][1])) for top, line in zip(tops, lines, strict=True)]


def _value_at(line: ChartLine, x: float, start: float, end: float) -> float | None:
    """The value of the line's point nearest to x, if it is at x or between start and end."""
    xs = [place for place, _ in line.points]
    index = bisect_left(xs, x)
    near = [line.points[i] for i in (index - 1, index) if 0 <= i < len(xs) and (xs[i] == x or start <= xs[i] <= end)]
    return min(near, key=lambda point: abs(point[0] - x))[1] if near else None


def chart_data(runs: Sequence[JobRun], charts: Sequence[Chart]) -> dict[str, Any]:
    """{"x": unit, "units": [[unit, name], ...], "runs": [...], "charts": [...]}; a unit is step, time or tokens."""
    known = [_along(run) for run in runs]
    drawn = [
        {
            "along": "time" if chart.along_time else "step",
            "height": chart.height + 20,
            "fromZero": chart.from_zero,
            "begin": chart.begin,
            "lines": [_line(line, known[line.run]["step"]) for line in chart.lines if line.points],
            "marks": [{"run": mark.run, "x": mark.step, "kind": mark.kind} for mark in chart.annotations],
        }
        for chart in charts
    ]
    units = [["step", "steps"], *([unit, unit] for unit in ("time", "tokens") if all(run[unit] for run in known))]
    return {"x": "step", "units": units, "runs": known, "charts": drawn}


def _along(run: JobRun) -> dict[str, list[float]]:
    """For each known step the seconds of training until then (restarts and pauses left out) and the tokens."""
    found: dict[str, list[float]] = {"step": [], "time": [], "tokens": []}
    total, before = 0.0, 0.0
    for point in run.points:
        if point.tokens and point.step and point.tokens_per_s:
            took = point.steps * (point.tokens / point.step) / point.tokens_per_s
            total, before = total + (took if point.step > before else 0.0), point.step
            for name, value in (
                ("step", _short(point.step)),
                ("time", round(total, 1)),
                ("tokens", _short(point.tokens)),
            ):
                found[name].append(value)
    return found


def _line(line: ChartLine, steps: Sequence[float]) -> dict[str, Any]:
    """Its points as "y" alone where they are at all of its run's steps, which the page has once."""
    points = [(_short(x), _short(y)) for x, y in (line.steps or line.points)]
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
