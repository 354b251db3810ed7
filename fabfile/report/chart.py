"""A line chart: its content, and the places of its lines and texts for templates/chart.html.

The plot has coordinates from 0 to 1000 both ways and is stretched to the available width; the texts are HTML around
it, at their own size. So the same page is readable on a phone, a desktop and paper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fabfile.report import numbers

MOST_DOTS = 30
"""More dots than this are drawn as one bold line."""
STRIPS = 200
"""Places along a chart that show their values when pointed at."""
_SIDE = 1000
_ROOM, _ROOM_QUIET = 34, 17
"""Pixels that a line's name takes: two rows of text, one for the quiet ones."""
_NAMED_MARKS = 4


@dataclass(frozen=True)
class Line:
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
    lines: Sequence[Line]
    form: Callable[[float | None], str] = numbers.plain
    """Formats a value."""
    from_zero: bool = False
    marks: Sequence[Mark] = ()
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
        self._left, self._right = min(0.0, *xs), max(xs)
        if self._right <= self._left:
            self._right = self._left + 1
        every = numbers.ticks(self._left, self._right, 4)
        self._x_ticks = [tick for tick in every if self._left <= tick <= self._right and tick == int(tick)]
        self._y_ticks = numbers.ticks(min([0.0, *ys] if chart.from_zero else ys), max(ys))

    def x(self, value: float) -> float:
        """The place of a value of the x axis."""
        return _SIDE * (value - self._left) / (self._right - self._left)

    def y(self, value: float) -> float:
        """The place of a value of the y axis, from the top."""
        low, high = self._y_ticks[0], self._y_ticks[-1]
        return _SIDE * (high - value) / (high - low)

    @property
    def summary(self) -> str:
        """The chart in words, for a reader who does not see it."""
        form = self.chart.form
        lines = [
            f"{line.full_name} from {form(line.points[0][1])} to {form(line.points[-1][1])}" for line in self.lines
        ]
        return f"{self.chart.title}: {'; '.join(lines)}"

    def y_labels(self) -> list[tuple[float, str]]:
        """(top, text)"""
        return [
            (self.y(value) / 10, text) for value, text in zip(self._y_ticks, numbers.axis(self._y_ticks), strict=True)
        ]

    def x_labels(self) -> list[tuple[float, str, str]]:
        """(left, classes, text)"""
        labels = []
        for index, (value, number) in enumerate(zip(self._x_ticks, numbers.axis(self._x_ticks), strict=True)):
            left = self.x(value) / 10
            edge = " first" if left < 4 else " last" if left > 96 else ""
            text = number if index else f"{self.chart.x_name} {number}"
            labels.append((left, f"x{edge}{' odd' if index % 2 else ''}", text))
        return labels

    def mark_names(self) -> list[tuple[float, Mark]]:
        """(left, mark) of the restarts, if they are few enough to be readable."""
        named = [mark for mark in self.chart.marks if mark.kind == "restart"]
        return [(self.x(mark.x) / 10, mark) for mark in named] if len(named) <= _NAMED_MARKS else []

    def paths(self) -> list[tuple[str, str, str]]:
        """(shape, classes, text when pointed at) of the grid, the marks and the lines."""
        found = [(f"M0 {self.y(value):.1f}h{_SIDE}", "grid", "") for value in self._y_ticks]
        for mark in self.chart.marks:
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
        found = []
        for index, x in enumerate(middles):
            start = (middles[index - 1] + x) / 2 if index else self._left
            end = (x + middles[index + 1]) / 2 if index + 1 < len(middles) else self._right
            texts = [f"{self.chart.x_name} {numbers.count(x)}"]
            for line in self.lines:
                if (value := _value_at(line, x, start, end)) is not None:
                    texts.append(f"{line.full_name}: {self.chart.form(value)}")
            texts += [mark.text for mark in self.chart.marks if start <= mark.x < end]
            left, right = self.x(start), self.x(end)
            found.append((left, max(0.5, right - left), "\n".join(texts)))
        return found

    def names(self) -> list[tuple[float, Line, str]]:
        """(top, line, last value): the lines' names at their ends, moved apart where two would overlap."""
        near = self._left + 0.98 * (self._right - self._left)
        lines = [line for line in self.lines if line.labelled]
        named = [line for line in lines if line.colour != "quiet" or line.points[-1][0] >= near]
        named.sort(key=lambda line: self.y(line.points[-1][1]))
        halves = [(_ROOM_QUIET if line.colour == "quiet" else _ROOM) / self.chart.height * 50 for line in named]
        tops = [self.y(line.points[-1][1]) / 10 for line in named]
        ceiling = 0.0
        for index, half in enumerate(halves):
            tops[index] = max(tops[index], ceiling + half)
            ceiling = tops[index] + half
        floor = 100.0
        for index in reversed(range(len(tops))):
            tops[index] = min(tops[index], floor - halves[index])
            floor = tops[index] - halves[index]
        return [(top, line, self.chart.form(line.points[-1][1])) for top, line in zip(tops, named, strict=True)]


def _value_at(line: Line, x: float, start: float, end: float) -> float | None:
    """The value of the line's point nearest to x, if it is at x or between start and end."""
    xs = [place for place, _ in line.points]
    index = bisect_left(xs, x)
    near = [line.points[i] for i in (index - 1, index) if 0 <= i < len(xs) and (xs[i] == x or start <= xs[i] <= end)]
    return min(near, key=lambda point: abs(point[0] - x))[1] if near else None
