"""Print for the verbs: aligned tables, lines with their node's name, colours only on a terminal."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from invoke.exceptions import Exit

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
_NODE_COLOURS = ("cyan", "yellow", "green", "magenta", "blue")
_COMMAND = re.compile(r"\bfab ([a-z][a-z-]*)(?![^\n,;()]*--(?:stack|inventory)\b)")
"""A `fab` command in a hint, unless it already names its cluster."""
_PROGRESS_S = 5.0
_lock = threading.Lock()
_target: list[Callable[[re.Match[str]], str]] = []
"""Names this command's cluster in a command of a hint, if the command line has named it."""


class OutputClosed(Exit):
    """The reader of our output has gone (`fab logs demo-1 | head`): the verb ends without a message."""

    def __init__(self) -> None:
        super().__init__(code=141)  # as a shell shows a command that SIGPIPE has ended


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and line end: C0, DEL, C1, and those that change the writing direction."""
_OURS = re.compile(r"(\033\[3[1-6]m[^\033]*\033\[0m)")  # from `colour`: no other escape sequences are written
_decoders: dict[TextIO, codecs.IncrementalDecoder] = {}


def visible(text: str) -> str:
    """The text with control characters escaped (`\\x1b`): it may come from a node, a log or a bucket."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def _harmless(text: str) -> str:
    parts = _OURS.split(text)  # every second part is one of our colour sequences, and has no other in it
    return "".join(
        part[:5] + visible(part[5:-4]) + part[-4:] if index % 2 else visible(part) for index, part in enumerate(parts)
    )


def say(line: str, *, file: TextIO | None = None) -> None:
    """Print a whole line at once; threads may call it."""
    write(line + "\n", file=file)


def write(text: str | bytes, *, file: TextIO | None = None, over: bool = False) -> None:
    """Print at once, with `over` on top of the current line; threads may call it. OutputClosed if the reader has gone.
    Control characters in text are escaped, on a pipe too: a file of it may be shown by `cat` later. Bytes are data
    (text from a model), which a pipe gets unchanged, and a terminal escaped."""
    file = file or sys.stdout
    if isinstance(text, bytes) and file.isatty():
        text = _decoders.setdefault(file, codecs.getincrementaldecoder("utf-8")(errors="replace")).decode(text)
    if isinstance(text, str):
        text = ("\r\033[K" if over else "") + _harmless(text)
    try:
        with _lock:
            if isinstance(text, bytes):
                file.flush()
                file.buffer.write(text)
            else:
                file.write(text)
            file.flush()
    except BrokenPipeError:
        to_nowhere(file)
        raise OutputClosed from None
    except OSError as error:
        to_nowhere(file)
        raise Exit(f"the output cannot be written: {error.strerror}", code=1) from None


def open_streams() -> None:
    """Replace closed output streams by /dev/null, and make the others accept every character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: `fab up >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def to_nowhere(file: TextIO) -> None:
    """Drop all later output to the stream, so that Python's own flush at exit succeeds."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


def colour(text: str, name: str, *, file: TextIO | None = None) -> str:
    """The text in a colour, if `file` has colours."""
    return f"\033[{_COLOURS[name]}m{text}\033[0m" if has_colours(file or sys.stdout) else text


def has_colours(file: TextIO) -> bool:
    """True for a terminal without NO_COLOR (no-color.org) and TERM=dumb; with FORCE_COLOR for anything."""
    return not os.environ.get("NO_COLOR") and (bool(os.environ.get("FORCE_COLOR")) or is_terminal(file))


def is_terminal(file: TextIO) -> bool:
    """Whether `file` is a terminal that can overwrite a line."""
    return file.isatty() and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal; 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def prefixed(node: str, line: str, *, file: TextIO | None = None) -> str:
    """`[node2] line`; a node keeps its colour."""
    name = _NODE_COLOURS[sum(node.encode()) % len(_NODE_COLOURS)]
    return f"{colour(f'[{node}]', name, file=file)} {one_line(line)}"


def one_line(text: str) -> str:
    """Text of others on one line: a line end in it could start a line that looks like ours."""
    return visible(text.replace("\n", "\\n"))


def remember_target(flag: str, takes: Callable[[str], bool]) -> None:
    """Store this command's stack or inventory flag (` --stack lab`, or nothing), and whether a verb takes it."""
    _target[:] = [lambda found: found[0] + (flag if takes(found[1]) else "")] if flag else []


def hint(text: str) -> str:
    """The text with this command's stack or inventory flag added to each `fab VERB` in it."""
    return _COMMAND.sub(_target[0], text) if _target else text


def next_command(command: str) -> str:
    """The line that says what to do next."""
    return hint(f"next: {command}")


def plural(count: int, word: str) -> str:
    """`1 rank`, `2 ranks`"""
    return f"{count} {word}{'s' * (count != 1)}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; the first row is the heading."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def duration(seconds: float) -> str:
    """45s, 12m, 3h20m, 5d: two units at most."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours >= 48:
        return f"{hours // 24}d"
    return f"{hours}h{minutes % 60:02d}m" if hours else f"{minutes}m" if minutes else f"{int(seconds)}s"


def gigabytes(value: float) -> str:
    """0.4 -> 410M, 3.25 -> 3.2G: short, for a table."""
    return f"{value * 1024:.0f}M" if value < 1 else f"{value:.1f}".removesuffix(".0") + "G"


class Progress:
    """Prints every few seconds how many of `total` bytes (0: not known, and nothing is printed) are done."""

    def __init__(self, total: int, show: Callable[[str], None] = say) -> None:
        self._total, self._show = total, show
        self._done, self._shown = 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._done += count
        if self._total and time.monotonic() - self._shown > _PROGRESS_S:
            self._shown = time.monotonic()
            self._show(f"{gigabytes(self._done / 2**30)} of {gigabytes(self._total / 2**30)}")


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, which is short and must not be left half done. Where fab was
    started with SIGINT ignored (`nohup`, `&`), it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, _frame: pressed.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
