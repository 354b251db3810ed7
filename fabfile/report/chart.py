"""A line chart: SVG stretched to whatever width there is, and its texts as HTML around it, at their own size.

The drawing has coordinates from 0 to 1000 both ways and is not kept in proportion; strokes do not scale, and dots are
strokes of no length with round ends. So the same page is sharp and readable on a phone, a desk and paper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fabfile.report import numbers
from fabfile.report.markup import Markup, element, escaped, join

MOST_DOTS = 30
"""With more, dots are no dots any more, but a line that is drawn bolder."""
STRIPS = 200
"""Places along a chart that tell their values when pointed at."""
_SIDE = 1000
_ROOM, _ROOM_QUIET = 34, 17
"""Pixels that a line's name takes: two rows of text, one for the quiet ones."""
_NAMED_MARKS = 4


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    """A class of the style sheet: a, b, or quiet for one among many."""
    dots: bool = False
    """For values with steps between them: drawn as dots, thinly joined."""
    labelled: bool = True
    of: str = ""
    """The run that it is of, where there are several."""
    run: int = 0
    """That run's number among the runs of the page."""
    steps: Sequence[tuple[float, float]] = ()
    """The same points along steps, all of them, where `points` are along something else or leave some out."""


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step."""

    x: float
    text: str
    kind: str
    """checkpoint: a tick on the axis; restart: a line through the chart."""
    colour: str = "a"
    name: str = ""
    """What stands beside it."""
    run: int = 0
    step: float = 0.0
    """`x` as a step of its run."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    unit: str
    lines: Sequence[Line]
    shown: Callable[[float | None], str] = numbers.plain
    """How a value is written."""
    from_zero: bool = False
    marks: Sequence[Mark] = ()
    x_name: str = "step"
    height: int = 240
    note: str = ""
    begin: float | None = None
    """The step from which on it is drawn, where what is before would make the rest flat."""
    along_time: bool = False
    """Its x are seconds since the run's start, whatever the other charts are laid along."""


@dataclass(frozen=True)
class Frame:
    """The values that the edges stand for."""

    x_ticks: list[float] = field(default_factory=list)
    y_ticks: list[float] = field(default_factory=list)
    left: float = 0.0
    right: float = 1.0

    def x(self, value: float) -> float:
        return _SIDE * (value - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return _SIDE * (high - value) / (high - low)


def is_empty(chart: Chart) -> bool:
    return not any(line.points for line in chart.lines)


def draw(chart: Chart, index: int = 0) -> Markup:
    """The chart; empty where there is nothing to draw. `index`: which of the page's charts it is, for its script."""
    lines = [line for line in chart.lines if line.points]
    if not lines:
        return Markup("")
    frame = framed(chart, lines)
    plot = element(
        "div", _svg(chart, lines, frame), *_x_labels(chart, frame), *_mark_names(chart, frame), class_="plot"
    )
    y_labels = (
        element("span", text, style=f"top:{frame.y(value) / 10:.2f}%")
        for value, text in zip(frame.y_ticks, numbers.axis(frame.y_ticks), strict=True)
    )
    body = element(
        "div",
        element("div", *y_labels, class_="y"),
        plot,
        element(
            "div", *_names(chart, lines, frame), class_="names both" if any(line.of for line in lines) else "names"
        ),
        class_="chart",
        style=f"--height:{chart.height}px",
    )
    caption = element("figcaption", element("b", chart.title), " ", element("span", chart.unit))
    note = element("p", chart.note, class_="note") if chart.note else ""
    return element("figure", caption, body, note, data_chart=index)


def framed(chart: Chart, lines: Sequence[Line]) -> Frame:
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    left, right = min(0.0, *xs), max(xs)
    right = right if right > left else left + 1
    x_ticks = [value for value in numbers.ticks(left, right, 4) if left <= value <= right]
    x_ticks = [value for value in x_ticks if value == int(value)]
    low = 0.0 if chart.from_zero else min(ys)
    return Frame(x_ticks, numbers.ticks(min(low, *ys), max(ys)), left, right)


def _svg(chart: Chart, lines: Sequence[Line], frame: Frame) -> Markup:
    parts: list[Markup] = [_path(f"M0 {frame.y(value):.1f}h{_SIDE}", "grid") for value in frame.y_ticks]
    for mark in chart.marks:
        x = min(_SIDE, max(0.0, frame.x(mark.x)))
        shape = f"M{x:.1f} 0V{_SIDE}" if mark.kind == "restart" else f"M{x:.1f} {_SIDE}v-30"
        parts.append(_path(shape, f"{mark.kind} {mark.colour}", mark.text))
    for line in lines:
        parts += _drawn(line, frame)
    strips = _strips(chart, lines, frame)
    return element(
        "svg",
        *parts,
        *strips,
        viewBox=f"0 0 {_SIDE} {_SIDE}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{chart.title}: {'; '.join(_summary(chart, line) for line in lines)}",
    )


def _drawn(line: Line, frame: Frame) -> list[Markup]:
    places = [(f"{frame.x(x):.1f}", f"{frame.y(y):.1f}") for x, y in line.points]
    joined = "M" + "L".join(f"{x} {y}" for x, y in places)
    if len(places) > (MOST_DOTS if line.dots else 1):
        return [_path(joined, f"{'bold' if line.dots else 'line'} {line.colour}")]
    dots = "".join(f"M{x} {y}h.01" for x, y in places)
    thin = [_path(joined, f"thin {line.colour}")] if len(places) > 1 else []
    return [*thin, _path(dots, f"halo {line.colour}"), _path(dots, f"dots {line.colour}")]


def _path(shape: str, class_: str, title: str = "") -> Markup:
    return element("path", element("title", title) if title else "", d=shape, class_=class_)


def _strips(chart: Chart, lines: Sequence[Line], frame: Frame) -> list[Markup]:
    """Each tells the values nearest to its middle, of the lines that have one near."""
    every = sorted({x for line in lines for x, _ in line.points})
    middles = every if len(every) <= STRIPS else [every[len(every) * i // STRIPS] for i in range(STRIPS)]
    found = []
    for index, x in enumerate(middles):
        start = (middles[index - 1] + x) / 2 if index else frame.left
        end = (x + middles[index + 1]) / 2 if index + 1 < len(middles) else frame.right
        texts = [f"{chart.x_name} {numbers.count(x)}"]
        texts += [f"{_full(line)}: {chart.shown(y)}" for line in lines if (y := _at(line, x, start, end)) is not None]
        texts += [mark.text for mark in chart.marks if start <= mark.x < end]
        left, right = frame.x(start), frame.x(end)
        title = element("title", "\n".join(texts))
        rest = {"x": f"{left:.1f}", "y": 0, "width": f"{max(0.5, right - left):.1f}", "height": _SIDE}
        found.append(element("rect", title, class_="strip", **rest))
    return found


def _at(line: Line, x: float, start: float, end: float) -> float | None:
    xs = [place for place, _ in line.points]
    index = bisect_left(xs, x)
    near = [line.points[i] for i in (index - 1, index) if 0 <= i < len(xs) and (xs[i] == x or start <= xs[i] <= end)]
    return min(near, key=lambda point: abs(point[0] - x))[1] if near else None


def _x_labels(chart: Chart, frame: Frame) -> list[Markup]:
    labels = []
    for index, (value, number) in enumerate(zip(frame.x_ticks, numbers.axis(frame.x_ticks), strict=True)):
        place = frame.x(value) / 10
        edge = " first" if place < 4 else " last" if place > 96 else ""
        text = f"{chart.x_name} {number}" if value == frame.x_ticks[0] else number
        labels.append(element("span", text, class_=f"x{edge}{' odd' if index % 2 else ''}", style=f"left:{place:.2f}%"))
    return labels


def _mark_names(chart: Chart, frame: Frame) -> list[Markup]:
    """Named where few enough to be read."""
    named = [mark for mark in chart.marks if mark.name]
    if len(named) > _NAMED_MARKS:
        return []
    return [
        element("span", mark.name, class_=f"mark {mark.colour}", style=f"left:{frame.x(mark.x) / 10:.2f}%")
        for mark in named
    ]


def _names(chart: Chart, lines: Sequence[Line], frame: Frame) -> list[Markup]:
    """Each line's name at its end, in its colour, with its last value; moved apart where two would overlap."""
    near = frame.left + 0.98 * (frame.right - frame.left)
    ends = [line for line in lines if line.labelled and (line.colour != "quiet" or line.points[-1][0] >= near)]
    ends.sort(key=lambda line: frame.y(line.points[-1][1]))
    halves = [(_ROOM_QUIET if line.colour == "quiet" else _ROOM) / chart.height * 50 for line in ends]
    tops = [frame.y(line.points[-1][1]) / 10 for line in ends]
    ceiling = 0.0
    for index, half in enumerate(halves):
        tops[index] = max(tops[index], ceiling + half)
        ceiling = tops[index] + half
    floor = 100.0
    for index in reversed(range(len(tops))):
        tops[index] = min(tops[index], floor - halves[index])
        floor = tops[index] - halves[index]
    return [
        element(
            "span",
            element("span", line.of, class_="of") if line.of else "",
            escaped(line.name),
            " " if line.name else "",
            element("b", chart.shown(line.points[-1][1])),
            class_=f"end {line.colour}",
            style=f"top:{top:.2f}%",
        )
        for line, top in zip(ends, tops, strict=True)
    ]


def _summary(chart: Chart, line: Line) -> str:
    first, last = line.points[0], line.points[-1]
    return f"{_full(line)} from {chart.shown(first[1])} to {chart.shown(last[1])}"


def _full(line: Line) -> str:
    return f"{line.of} {line.name}".strip() or "value"


def row(charts: Sequence[Markup]) -> Markup:
    """Small multiples, side by side where there is room."""
    shown = [chart for chart in charts if chart]
    return element("div", *shown, class_="row") if shown else join([])
