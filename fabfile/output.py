"""What the verbs print: aligned tables, lines that say which node they are of, colours only on a terminal."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TextIO

from invoke.exceptions import Exit

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
_NODE_COLOURS = ("cyan", "yellow", "green", "magenta", "blue")
_lock = threading.Lock()


def say(line: str, *, file: TextIO | None = None) -> None:
    """Print a line at once and whole, from any thread."""
    file = file or sys.stdout
    with _lock:
        file.write(line + "\n")
        file.flush()


def colour(text: str, name: str, *, file: TextIO | None = None) -> str:
    """The text in a colour, if somebody is looking at a terminal."""
    return f"\033[{_COLOURS[name]}m{text}\033[0m" if (file or sys.stdout).isatty() else text


def prefixed(node: str, line: str, *, file: TextIO | None = None) -> str:
    """`[node2] line`; a node keeps its colour."""
    name = _NODE_COLOURS[sum(node.encode()) % len(_NODE_COLOURS)]
    return f"{colour(f'[{node}]', name, file=file)} {line}"


def next_command(command: str) -> str:
    """The line that says what to do next, on the same stack or inventory that this command was given."""
    target = ""
    for word, value in itertools.pairwise([*sys.argv, ""]):
        flag, equals, inline = word.partition("=")
        if flag in ("-s", "--stack", "-i", "--inventory"):
            target = f" {flag} {shlex.quote(inline if equals else value)}"
    return f"next: {command}{target}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def duration(seconds: float) -> str:
    """45s, 12m, 3h20m, 5d: two units at most."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 1:
        return f"{int(seconds)}s"
    if hours < 1:
        return f"{minutes}m"
    return f"{hours}h{minutes % 60:02d}m" if days < 2 else f"{days}d"


def gigabytes(value: float) -> str:
    """0.4 -> 410M, 3.25 -> 3.2G: short, for a table."""
    return f"{value * 1024:.0f}M" if value < 1 else f"{value:.1f}".removesuffix(".0") + "G"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C, or a reader that goes away (`fab run ... | head`), ends a verb without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        raise Exit("interrupted", code=130) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at the end
        raise Exit(code=141) from None
