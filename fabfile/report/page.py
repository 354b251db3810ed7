"""Render the report: one self-contained HTML file about one run or several."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fabfile.report import bars, compare, curves, details, numbers
from fabfile.report.chart import Drawing
from fabfile.report.chart_data import chart_data
from fabfile.report.run import Run

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent
_STYLES = ("vendor/uPlot.min.css", "templates/style.css")
_SCRIPTS = ("vendor/uPlot.iife.min.js", "templates/interactive.js")
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
    return environment


def render(runs: Sequence[Run], *, refresh: int = 0) -> str:
    """The HTML text. If `refresh` is above 0, the browser reloads it every `refresh` seconds."""
    scripts = [(_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    charts = curves.charts_of(runs)
    return (
        _environment()
        .get_template("page.html")
        .render(
            bars=bars,
            chart_data=chart_data(runs, charts) if charts else None,
            colours=curves.COLOURS,
            compare=compare,
            details=details,
            drawings={chart.title: (index, Drawing(chart)) for index, chart in enumerate(charts)},
            hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
            origin_of=_origin,
            numbers=numbers,
            refresh=refresh,
            runs=runs,
            scripts=scripts,
            signs=_SIGNS,
            style="".join((_FOLDER / name).read_text(encoding="utf-8") for name in _STYLES),
            tiles=_tiles,
        )
    )


def _origin(run: Run) -> list[str]:
    """The run's nodes, time and precision, as far as known."""
    begun = numbers.moment(run.started) if run.started is not None else ""
    going = f", still under way at {numbers.moment(run.now)}" if begun and run.ended is None else ""
    return [part for part in (_nodes(run), begun + going, f"in {run.precision}" if run.precision else "") if part]


def _nodes(run: Run) -> str:
    """3 nodes (node1, node2, node3), 3 ranks, at the end without node3"""
    every = run.all_nodes
    if not every:
        return ""
    names = ", ".join(every) if len(every) <= 4 else f"{every[0]} … {every[-1]}"
    ranks = f", {run.ranks} {'rank' if run.ranks == 1 else 'ranks'}" if run.ranks else ""
    gone = [name for name in every if name not in run.nodes]
    lost = f", at the end without {', '.join(gone)}" if gone else ""
    return f"{len(every)} {'node' if len(every) == 1 else 'nodes'} ({names}){ranks}{lost}"


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """(name, figure, detail) of the main figures."""
    share, best = compare.peak(run), ""
    if run.best is not None:
        bits = run.best.bits_per_byte
        bits_per_byte = f"{numbers.fixed(bits)} bits per byte, " if bits is not None else ""
        best = f"{bits_per_byte}step {numbers.plain(run.best.step)}"
    restarts = f"{run.restarts} restart{'s' * (run.restarts > 1)}" if run.restarts else ""
    hourly = f"{numbers.money(run.hourly_usd)} an hour" if run.hourly_usd is not None else ""
    return [
        ("duration", numbers.span(run.duration), restarts),
        ("steps", numbers.plain(run.last.step), f"of {numbers.plain(run.steps)}" if run.steps else ""),
        ("tokens", numbers.count(run.tokens if run.points else None), ""),
        ("tokens a second", numbers.count(compare.speed(run)), f"{numbers.percent(share)} of peak" if share else ""),
        ("last loss", numbers.fixed(run.last.loss), ""),
        ("best validation", numbers.fixed(run.best.loss if run.best else None), best),
        ("cost", numbers.money(run.cost), hourly),
    ]
