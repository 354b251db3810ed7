"""One command on one open connection, line by line, and its end: whatever happens here, nothing stays running there."""

from __future__ import annotations

import codecs
import math
import select
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

OnLine = Callable[[str, str, str], None]
"""Called with (node, "stdout" | "stderr", line) for each line as it comes, from the node's own thread."""

UNREACHABLE = 255
"""The exit code that OpenSSH gives when the connection fails."""
TIMED_OUT = 124
"""The exit code that timeout(1) gives."""

_GUARD = Path(__file__).parent / "on_node" / "guard.sh"
# A command is over when its shell is. What it left in the background may hold the output open for ever.
_DRAIN_SECONDS = 1.0
_POLL_SECONDS = 0.25  # how often to look whether a silent command has ended while something else holds its output


class Channel(Protocol):
    """What is used of paramiko.Channel."""

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
    """What a command did on a node; an unreachable node has exit code 255 and the reason."""

    node: str
    exited: int
    stdout: str = ""
    stderr: str = ""
    reason: str = ""
    """Why there is no result of the command itself (unreachable, timed out); else empty."""

    @property
    def ok(self) -> bool:
        return self.exited == 0

    @property
    def why(self) -> str:
        """One line for a person: the reason, or the last thing that the command said."""
        last = (self.stderr.strip() or self.stdout.strip() or "no output").splitlines()[-1]
        return self.reason or f"exit code {self.exited}: {last}"


def guarded(command: str) -> str:
    """The command under a guard that ends it, with all it started, as soon as the connection is gone."""
    return f"exec bash --norc -c {shlex.quote(_GUARD.read_text())} {shlex.quote(command)}"


class Lines:
    """Bytes in, whole lines out; keeps all of the text."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self.text = ""
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []
        self._rest = ""

    def feed(self, data: bytes, *, final: bool = False) -> None:
        text = self._decoder.decode(data, final)
        self._parts.append(text)
        if self._on_line:
            *lines, self._rest = (self._rest + text).split("\n")
            if final and self._rest:
                lines, self._rest = [*lines, self._rest], ""
            for line in lines:
                self._on_line(line.rstrip("\r"))
        if final:
            self.text = "".join(self._parts)


def follow(node: str, channel: Channel, *, timeout: float | None = None, on_line: OnLine | None = None) -> Result:
    """Read a started command's output to its end."""

    def each(stream: str) -> Callable[[str], None] | None:
        return (lambda line: on_line(node, stream, line)) if on_line else None

    out, err = Lines(each("stdout")), Lines(each("stderr"))
    deadline = None if timeout is None else time.monotonic() + timeout
    in_time = _read(channel, out, err, deadline)
    for lines in (out, err):
        lines.feed(b"", final=True)
    if not in_time:
        return Result(node, TIMED_OUT, out.text, err.text, f"{node}: not finished after {timeout:g} s")
    code = channel.recv_exit_status()
    if code < 0:
        return Result(node, UNREACHABLE, out.text, err.text, f"{node}: the connection was lost while the command ran")
    return Result(node, code, out.text, err.text)


def _read(channel: Channel, out: Lines, err: Lines, deadline: float | None) -> bool:
    """Read until the output's end, or the command's and a moment of silence; False: the deadline came first."""
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while True:
        left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
        ended = channel.exit_status_ready()
        poller.poll(min(left, _DRAIN_SECONDS if ended else _POLL_SECONDS) * 1000)
        # Asked before reading, so that nothing can slip in between the last read and the answer.
        closed = channel.eof_received or channel.closed
        out_data = channel.recv(1 << 16) if channel.recv_ready() else b""
        err_data = channel.recv_stderr(1 << 16) if channel.recv_stderr_ready() else b""
        out.feed(out_data)
        err.feed(err_data)
        if not out_data and not err_data:
            if closed:  # the command may go on without an output
                return bool(channel.status_event.wait(None if deadline is None else left))
            if ended:
                return True
            if left == 0:
                return False
