"""Render the report: one self-contained HTML file about one run or several."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fabfile.report import bars, curves, details, numbers
from fabfile.report.chart import chart_data, outline
from fabfile.report.run import JobRun

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent
_STYLES = ("vendor/uPlot.min.css", "templates/style.css")
_SCRIPTS = ("templates/resolution.js", "vendor/uPlot.iife.min.js", "templates/interactive.js")
_SIGNS = {"SUCCEEDED": "✓", "FAILED": "✕", "CANCELLED": "■", "RUNNING": "▶", "PENDING": "…"}
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Control characters, lone surrogates, and characters that change the writing direction."""


@cache
def _environment() -> Environment:
    """The templates; text from a run's files is escaped, with hidden characters shown as �."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # at need: every verb loads this module

    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: _HIDDEN.sub("\ufffd", value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made = {"bars": bars, "colours": curves.COLOURS, "details": details, "numbers": numbers, "outline": outline}
    environment.globals.update(made)
    return environment


def render(runs: Sequence[JobRun], *, refresh: int = 0) -> str:
    """The HTML text; of many runs all are in its table, and only the best are drawn. If `refresh` is above 0, the
    browser reloads it every `refresh` seconds."""
    style, scripts = ([(_FOLDER / name).read_text(encoding="utf-8") for name in files] for files in (_STYLES, _SCRIPTS))
    every, runs = runs, curves.drawn(runs)
    charts = curves.charts_of(runs)
    values = {
        "every": every,
        "chart_data": chart_data(runs, charts) if charts else None,
        "drawings": {chart.title: (index, chart) for index, chart in enumerate(charts)},
        "hashes": [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        "refresh": refresh,
        "runs": runs,
        "scripts": scripts,
        "signs": _SIGNS,
        "style": "".join(style),
    }
    return _environment().get_template("page.html").render(values)
