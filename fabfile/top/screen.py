"""Draws the tables of `fab top` on a terminal, again and again, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fabfile.top.view import NODES, RANKS, View

_LOOSE = {"", "JOB", "NODE", "PHASE"}  # columns of words; the others are numbers


def show(name: str, look: Callable[[], View], seconds: float) -> None:
    """Draw what `look` returns every few seconds, on a screen of its own; returns at Ctrl-C."""
    console = Console(highlight=False)
    try:
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(drawn(name, look()), refresh=True)
                time.sleep(seconds)
    except KeyboardInterrupt:
        return


def drawn(name: str, view: View) -> Group:
    """The screen. All text of the nodes is plain: nothing in it counts as markup."""
    title = Text(f"{name}  {time.strftime('%H:%M:%S')}  (Ctrl-C ends it)", style="bold")
    parts: list[Text | Table] = [title, Text()]
    parts += [_table(NODES, view.nodes)] if view.nodes else []
    for job in view.jobs:
        parts += [Text(), Text(job.title, style="bold cyan")]
        parts += [_table(RANKS, job.ranks)] if job.ranks else []
    if not view.jobs:
        parts += [Text(), Text("no job is under way")]
    return Group(*parts)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in heading:
        table.add_column(name, justify="left" if name in _LOOSE else "right", no_wrap=name != "")
    for row in rows:
        *cells, last = (Text(cell) for cell in row)
        last.stylize("yellow" if not heading[-1] else "")
        table.add_row(*cells, last)
    return table
