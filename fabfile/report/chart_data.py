"""The data that templates/interactive.js draws the charts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fabfile.report.chart import Chart, Line
from fabfile.report.run import Run


def chart_data(runs: Sequence[Run], charts: Sequence[Chart]) -> dict[str, Any]:
    """{"x": unit, "units": [[unit, name], ...], "runs": [...], "charts": [...]}; a unit is step, time or tokens."""
    known = [_along(run) for run in runs]
    units = [["step", "steps"], *([unit, unit] for unit in ("time", "tokens") if all(run[unit] for run in known))]
    lines = [[_line(line, known[line.run]["step"]) for line in chart.lines if line.points] for chart in charts]
    return {
        "x": "step",
        "units": units,
        "runs": known,
        "charts": [
            {
                "along": "time" if chart.along_time else "step",
                "height": chart.height + 20,
                "fromZero": chart.from_zero,
                "begin": chart.begin,
                "lines": of_chart,
                "marks": [{"run": mark.run, "x": mark.step, "kind": mark.kind} for mark in chart.marks],
            }
            for chart, of_chart in zip(charts, lines, strict=True)
        ],
    }


def _along(run: Run) -> dict[str, list[float]]:
    """For each known step the seconds of training until then (restarts and pauses left out) and the tokens."""
    steps, seconds, tokens, total, before = [], [], [], 0.0, None
    for point in run.points:
        batch = point.tokens / point.step if point.tokens and point.step else None
        took = point.steps * batch / point.tokens_per_s if batch and point.tokens_per_s else None
        if took is None or point.tokens is None:
            continue
        total += took if before is None or point.step > before else 0.0
        before = point.step
        steps.append(_short(point.step))
        seconds.append(round(total, 1))
        tokens.append(_short(point.tokens))
    return {"step": steps, "time": seconds, "tokens": tokens}


def _line(line: Line, steps: Sequence[float]) -> dict[str, Any]:
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
