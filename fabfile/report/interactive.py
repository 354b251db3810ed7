"""The part of the page that needs scripts: its charts' data, uPlot (vendor/), and the page's own script.

Only these two scripts may run: the page's policy has their hashes, so that nothing that a run's files say can become
one. The data are JSON in the page, with every `<` written as an escape.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fabfile.report.chart import Chart, Line
from fabfile.report.facts import Run
from fabfile.report.markup import Markup

_FOLDER = Path(__file__).parent
_SCRIPTS = ("vendor/uPlot.iife.min.js", "interactive.js")


def style() -> str:
    """The library's style sheet."""
    return _read("vendor/uPlot.min.css")


def _read(name: str) -> str:
    # When a page is written, not when this module is loaded: every verb loads it.
    return (_FOLDER / name).read_text(encoding="utf-8")


def policy() -> str:
    """Sources of scripts, for the page's Content-Security-Policy."""
    hashes = (base64.b64encode(hashlib.sha256(_read(name).encode()).digest()).decode() for name in _SCRIPTS)
    return " ".join(f"'sha256-{each}'" for each in hashes)


def scripts(runs: Sequence[Run], charts: Sequence[Chart]) -> Markup:
    """The data and the scripts; empty where there is nothing to draw."""
    if not charts:
        return Markup("")
    text = json.dumps(data(runs, charts), separators=(",", ":"), allow_nan=False)
    block = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    parts = [f'<script type="application/json" id="data">{block}</script>']
    return Markup("\n".join([*parts, *(f"<script>{_read(name)}</script>" for name in _SCRIPTS)]))


def data(runs: Sequence[Run], charts: Sequence[Chart]) -> dict[str, Any]:
    """{"x": unit, "units": [[unit, name], ...], "runs": [...], "charts": [...]}, as interactive.js reads it."""
    known = [_along(run) for run in runs]
    steps = [each["step"] for each in known]
    units = [["step", "steps"]]
    units += [["time", "time"]] if all(each["time"] for each in known) else []
    units += [["tokens", "tokens"]] if all(each["tokens"] for each in known) else []
    return {"x": "step", "units": units, "runs": known, "charts": [_chart(chart, steps) for chart in charts]}


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


def _chart(chart: Chart, steps: Sequence[Sequence[float]]) -> dict[str, Any]:
    return {
        "along": "time" if chart.along_time else "step",
        "height": chart.height + 20,
        "fromZero": chart.from_zero,
        "begin": chart.begin,
        "lines": [_line(line, steps[line.run]) for line in chart.lines if line.points],
        "marks": [{"run": mark.run, "x": mark.step, "kind": mark.kind} for mark in chart.marks],
    }


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
    """Five digits are more than a screen shows."""
    return int(value) if value == int(value) else float(f"{value:.5g}")
