"""Bars: where the time went, stacked on one scale; and how fast each node was, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabfile.report import numbers
from fabfile.report.curves import COLOURS
from fabfile.report.facts import PARTS, Run
from fabfile.report.markup import Markup, element, join, table
from fabfile.report.speeds import by_node, typical

_NAMES = {
    "compute": "computing",
    "communication": "communication",
    "data": "reading data",
    "eval": "validation",
    "checkpoint": "checkpoints",
    "other": "other",
}
_MEANS = {
    "compute": "forward, backward, update",
    "communication": "waiting for the other ranks, not hidden behind the backward pass",
    "data": "",
    "eval": "",
    "checkpoint": "that training waited for; the writing itself is in the background",
    "other": "starting, restarts and steps lost to them, ending",
}


def parts(run: Run) -> dict[str, float]:
    """Seconds of the job by what they went to; what its steps do not account for is other."""
    found = {name: run.totals.get(name, 0.0) for name in PARTS}
    rest = sum(seconds for name, seconds in run.totals.items() if name not in PARTS)
    if run.duration is not None:
        rest = max(rest, run.duration - sum(found.values()))
    return {name: seconds for name, seconds in {**found, "other": rest}.items() if seconds > 0}


def where_time_went(runs: Sequence[Run]) -> Markup:
    """A bar for each run, all on the scale of the longest, and the figures below."""
    found = [parts(run) for run in runs]
    longest = max((sum(each.values()) for each in found), default=0.0)
    if not longest:
        return Markup("")
    bars = [_stacked(run.id if len(runs) > 1 else "", each, longest) for run, each in zip(runs, found, strict=True)]
    rows: list[list[object]] = []
    for name in _NAMES:
        if any(name in each for each in found):
            key = join([element("i", class_=f"key {name}"), _NAMES[name]])
            meaning = element("small", _MEANS[name]) if _MEANS[name] else ""
            cells = [cell for each in found for cell in _cells(each, name)]
            rows.append([join([key, meaning]), *cells])
    heading: list[object] = [""]
    for run in runs:
        heading += [run.id if len(runs) > 1 else "time", "share"]
    return join([*bars, table(heading, rows, "figures")])


def _cells(each: Mapping[str, float], name: str) -> list[object]:
    seconds = each.get(name, 0.0)
    return [numbers.span(seconds), numbers.percent(seconds / (sum(each.values()) or 1))]


def _stacked(name: str, each: Mapping[str, float], longest: float) -> Markup:
    whole = sum(each.values())
    pieces = []
    for part, seconds in each.items():
        share = seconds / (whole or 1)
        told = f"{_NAMES[part]}: {numbers.span(seconds)}, {numbers.percent(share)}"
        text, room = f"{_NAMES[part]} {numbers.percent(share)}", share * whole / longest
        fits, fits_phone = room > 0.01 * len(text) + 0.01, room > 0.025 * len(text) + 0.03
        class_ = part if fits_phone else f"{part} long"
        pieces.append(element("span", text if fits else "", class_=class_, title=told, style=f"flex-grow:{share:.5f}"))
    label = element("div", element("b", name), " ", numbers.span(whole), class_="of") if name else ""
    bar = element("div", *pieces, class_="stack", style=f"width:{whole / longest * 100:.2f}%")
    return element("div", label, bar, class_="stacked")


def nodes(runs: Sequence[Run]) -> Markup:
    """Each node's typical speed; several runs one below the other, on one scale."""
    speeds = [(run, name, typical(series)) for run in runs for name, series in by_node(run).items()]
    fastest = max((speed for _, _, speed in speeds), default=0.0)
    rows = []
    for run, name, speed in speeds:
        slower = 1 - speed / max(other for of, _, other in speeds if of is run)
        label = f"{name} · {run.id}" if len(runs) > 1 else name
        text = f"{numbers.count(speed)} tokens/s" + (f", {numbers.percent(slower)} slower" if slower >= 0.02 else "")
        colour = COLOURS[runs.index(run)]
        bar = element("span", class_=colour, style=f"width:{speed / fastest * 100:.2f}%")
        rows.append(element("li", element("b", label), element("span", bar, class_="bar"), element("em", text)))
    return element("ul", *rows, class_="speeds") if rows else Markup("")
