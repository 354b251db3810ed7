"""Bars for the report: what a run spent its time on, and how fast each node was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from fabfile.report import numbers
from fabfile.report.curves import COLOURS
from fabfile.report.run import PARTS, JobRun

NAMES = {
    "compute": ("computing", "forward, backward, update"),
    "communication": ("communication", "waiting for the other ranks, not hidden behind the backward pass"),
    "exchange": ("exchange", "with the other clusters, not hidden behind the steps"),
    "data": ("reading data", ""),
    "eval": ("validation", ""),
    "checkpoint": ("checkpoints", "that training waited for; the writing itself is in the background"),
    "other": ("other", "starting, restarts and steps lost to them, ending"),
}
"""Each part of the time: its name and its meaning."""


@dataclass(frozen=True)
class Piece:
    """A part of a run's time as a piece of its bar."""

    part: str
    seconds: float
    share: float
    """Share of the run's time, from 0 to 1."""


def parts(run: JobRun) -> dict[str, float]:
    """Seconds of the job by part; time outside the measured parts of its steps is `other`."""
    found = {name: run.totals.get(name, 0.0) for name in PARTS}
    rest = sum(seconds for name, seconds in run.totals.items() if name not in PARTS)
    if run.duration is not None:
        rest = max(rest, run.duration - sum(found.values()))
    return {name: seconds for name, seconds in {**found, "other": rest}.items() if seconds > 0}


def time_bars(runs: Sequence[JobRun]) -> list[tuple[JobRun, float, list[Piece]]]:
    """(run, width of its bar in per cent of the longest, its pieces); empty if no time is known."""
    found = [parts(run) for run in runs]
    longest = max((sum(one.values()) for one in found), default=0.0)
    if not longest:
        return []
    totals = [sum(one.values()) for one in found]
    return [
        (run, total / longest * 100, [Piece(name, seconds, seconds / total) for name, seconds in one.items()])
        for run, one, total in zip(runs, found, totals, strict=True)
    ]


def time_rows(bars: Sequence[tuple[JobRun, float, list[Piece]]]) -> list[tuple[str, list[str]]]:
    """(part, cells) of every part that a run spent time on: each run's time and share."""
    rows = []
    for part in NAMES:
        found = [{piece.part: (piece.seconds, piece.share) for piece in pieces}.get(part) for _, _, pieces in bars]
        if any(found):
            both = [one or (0.0, 0.0) for one in found]
            rows.append((part, [text for s, share in both for text in (numbers.span(s), numbers.percent(share))]))
    return rows


def node_bars(runs: Sequence[JobRun]) -> list[tuple[str, str, float, str]]:
    """(label, colour, width in per cent of the fastest, text) of each node's typical speed, on one scale."""
    speeds = [(run, name, typical(series)) for run in runs for name, series in run.node_speeds().items()]
    fastest = max((speed for _, _, speed in speeds), default=0.0)
    bars = []
    for run, name, speed in speeds:
        slower = 1 - speed / max(other for of, _, other in speeds if of is run)
        text = f"{numbers.count(speed)} tokens/s" + (f", {numbers.percent(slower)} slower" if slower >= 0.02 else "")
        label = f"{name} · {run.id}" if len(runs) > 1 else name
        bars.append((label, COLOURS[runs.index(run)], speed / fastest * 100, text))
    return bars


def typical(series: Sequence[tuple[float, float]]) -> float:
    """The median of a node's speed in tokens per second: one slow step does not change it."""
    return median_high(value for _, value in series)
