"""Run one command on an open connection and read its output. The command ends when the connection does."""

from __future__ import annotations

import codecs
import math
import select
import shlex
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from fabfile.remote.keepalive import why_lost
from node import FOLDER

OnLine = Callable[[str, str, str], None]
"""Called with (node, "stdout" | "stderr", line) for each line as it comes, from the node's own thread."""

UNREACHABLE = 255  # the exit code that OpenSSH gives when the connection fails
TIMED_OUT = 124  # the exit code that timeout(1) gives

MOST = 64 << 20  # most characters of an output that is needed whole; more raises TooMuch
TAIL = 64 << 10
"""Characters kept from the end of an output whose lines went to `on_line`: enough to say why a command failed."""
LONGEST_LINE = 64 << 10  # characters after which an unfinished line is passed on as it is

_GUARD = FOLDER / "guard.sh"
# Silence after the shell's exit that ends the reading: a background process may hold the output open for ever.
_DRAIN_SECONDS = 1.0
_POLL_SECONDS = 0.25  # how often to look whether a silent command has ended while something else holds its output


class _Channel(Protocol):
    """The part of paramiko.Channel that is used here."""

    status_event: threading.Event
    eof_received: bool
    closed: bool

    def fileno(self) -> int: ...
    def recv_ready(self) -> bool: ...
    def recv_stderr_ready(self) -> bool: ...
    def recv(self, nbytes: int, /) -> bytes: ...
    def recv_stderr(self, nbytes: int, /) -> bytes: ...
    def exit_status_ready(self) -> bool: ...
    def recv_exit_status(self) -> int: ...


@dataclass(frozen=True)
class Result:
    """The outcome of a command on one node; an unreachable node has exit code 255 and a reason."""

    node: str
    exited: int
    stdout: str = ""
    stderr: str = ""
    reason: str = ""  # why there is no result of the command itself (unreachable, timed out); else empty

    @property
    def ok(self) -> bool:
        """Whether the command ended with exit code 0."""
        return self.exited == 0

    @property
    def why(self) -> str:
        """One line for a person: the reason, or the last thing that the command said."""
        last = (self.stderr.strip() or self.stdout.strip() or "no output").splitlines()[-1]
        return self.reason or f"exit code {self.exited}: {last}"


def guarded(command: str) -> str:
    """Wrap a command in a guard (node/guard.sh) that ends it and its children when the connection is gone."""
    return f"exec bash --norc -c {shlex.quote(_GUARD.read_text())} {shlex.quote(command)}"


class TooMuch(Exception):
    """A command printed more than MOST characters of an output that is needed whole."""


class LineSplitter:
    """Split bytes into lines. With `on_line` keep only the last TAIL characters; without it all, up to MOST."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self.text = ""
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []
        self._size = 0
        self._rest = ""

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """Take the next bytes; with `final`, the last ones, after which `text` is there. Raises TooMuch."""
        text = self._decoder.decode(data, final)
        self._parts.append(text)
        self._size += len(text)
        if self._on_line:
            if self._size > 2 * TAIL or final:
                self._parts, self._size = ["".join(self._parts)[-TAIL:]], TAIL
            self._pass_on(text, self._on_line, final=final)
        elif self._size > MOST:
            raise TooMuch
        if final:
            self.text = "".join(self._parts)

    def _pass_on(self, text: str, on_line: Callable[[str], None], *, final: bool) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        if (final and self._rest) or len(self._rest) > LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:  # of a line that a progress bar has overwritten, what a terminal would show
            on_line(line.rstrip("\r").rpartition("\r")[2])
        # A progress bar that has not ended its line: drop all states but the last.
        self._rest = self._rest[self._rest.rstrip("\r").rfind("\r") + 1 :]


def last_words(channel: Any, default: str = "no answer", lines: int = 1) -> str:
    """The last lines, joined by `; `, that a command writes to its stderr, which is read to its end."""
    text = channel.makefile_stderr("r").read()
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return "; ".join((text.strip() or default).splitlines()[-lines:])


def exit_status(channel: Any, seconds: float) -> int:
    """The exit code of a command whose input has been sent; OSError if it does not end in time, or is lost."""
    if not channel.status_event.wait(seconds):
        raise OSError(f"no end after {seconds:g} s")
    code: int = channel.recv_exit_status()
    if code < 0:
        raise OSError(why_lost(channel))
    return code


def follow(
    node: str,
    channel: _Channel,
    *,
    timeout: float | None = None,
    quiet: float | None = None,
    on_line: OnLine | None = None,
) -> Result:
    """Read a started command's output to its end. A late or lost command does not raise: its Result has the reason.
    `timeout` limits the whole command, `quiet` the time without a byte of output, both in seconds; None: no limit while
    the connection lives (see fabfile/remote/keepalive.py)."""

    def each(stream: str) -> Callable[[str], None] | None:
        return (lambda line: on_line(node, stream, line)) if on_line else None

    out, err = LineSplitter(each("stdout")), LineSplitter(each("stderr"))
    reason = ""
    try:
        for out_data, err_data in parts(channel, timeout, quiet):
            out.feed(out_data)
            err.feed(err_data)
    except Late as late:
        reason = f"{node}: {late}"
    except TooMuch:
        return Result(node, 1, reason=f"{node}: printed more than {MOST >> 20} MiB")
    return _result(node, channel, reason, out, err)


def stream(node: str, channel: _Channel, *, quiet: float) -> Generator[bytes | Result, None, None]:
    """Yield a started command's stdout as it comes, then its Result, which has the end of stderr. Give the command
    up after `quiet` seconds without a byte."""
    out, err = LineSplitter(None), LineSplitter(lambda line: None)
    reason = ""
    try:
        for out_data, err_data in parts(channel, None, quiet):
            err.feed(err_data)
            if out_data:
                yield out_data
    except Late as late:
        reason = f"{node}: {late}"
    yield _result(node, channel, reason, out, err)


def _result(node: str, channel: _Channel, reason: str, out: LineSplitter, err: LineSplitter) -> Result:
    """The result of a command whose output has ended, or that was given up for `reason`."""
    for lines in (out, err):
        lines.feed(b"", final=True)
    code = TIMED_OUT if reason else channel.recv_exit_status()
    if code < 0:
        code, reason = UNREACHABLE, f"{node}: {why_lost(channel)} while the command ran"
    return Result(node, code, out.text, err.text, reason)


class Late(Exception):
    """A command did not end, or printed nothing, within its time."""


def parts(channel: _Channel, timeout: float | None, quiet: float | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield (stdout, stderr) until the output ends, or the command has ended and is silent for _DRAIN_SECONDS. Raises
    Late after `timeout` seconds in all, or `quiet` seconds of silence."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    heard = time.monotonic()
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while True:
        remaining = max(0.0, deadline - time.monotonic())
        ended = channel.exit_status_ready()
        poller.poll(min(remaining, _DRAIN_SECONDS if ended else _POLL_SECONDS) * 1000)
        # Checked before reading: output that came between the last read and the check would be lost.
        closed = channel.eof_received or channel.closed
        out = channel.recv(1 << 16) if channel.recv_ready() else b""
        err = channel.recv_stderr(1 << 16) if channel.recv_stderr_ready() else b""
        if out or err:
            yield out, err
            heard = time.monotonic()  # set after the yield: the reader's own time is not the command's silence
            continue
        if closed:  # a command may close its output and go on
            if not channel.status_event.wait(None if timeout is None else remaining):
                raise Late(f"not finished after {timeout:g} s")
            return
        if ended:
            return
        if remaining == 0:
            raise Late(f"not finished after {timeout:g} s")
        if quiet is not None and time.monotonic() - heard > quiet:
            raise Late(f"silent for {quiet:g} s")
