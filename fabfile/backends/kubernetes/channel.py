"""A program in a pod with its stdin, stdout, stderr and exit code, used as a channel of an SSH connection is.

The API carries them over one WebSocket: the first byte of a message says which stream it is of. A thread of its own
moves the bytes, so that there is never more than one that uses the TLS connection.
https://kubernetes.io/docs/reference/using-api/api-concepts/ and k8s.io/apimachinery/pkg/util/remotecommand/constants.go
"""

from __future__ import annotations

import io
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fabfile.backends.kubernetes.wire import Broken, Wire
from fabfile.remote import keepalive

STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
_CHUNK = 32 << 10  # bytes of stdin in one message
_WAITING = 256 << 10  # most bytes of stdin that wait to be sent
_UNREAD = 2 << 20  # bytes of output that nobody has read, from which on no more is taken from the network
_LONGEST_STATUS = 64 << 10
_POLL = 0.5
_URL = re.compile(r'(error sending request: )?(Post|Get) "[^"]*": ')
"""What the API server says before the reason when it cannot reach a machine; the URL has the whole command."""


class ExecChannel:
    """A channel, as paramiko.Channel is one, for a program that is yet to be started."""

    def __init__(self, start: Callable[[str], tuple[Any, bytes]], on_lost: Callable[[], None] = lambda: None) -> None:
        """`start` runs a shell command in the pod; it returns httpx2's response to the upgrade, and what is to be sent
        to stdin before all else. KubeError. `on_lost` is called if the connection is lost before the program's end."""
        self._start, self._on_lost = start, on_lost
        self._change = threading.Condition()
        self._out = {STDOUT: bytearray(), STDERR: bytearray()}
        self._in = bytearray()
        self._code: int | None = None
        self._status = bytearray()
        self._timeout: float | None = None
        self._wants_close = self._wants_eof = False
        self._nudge, self._nudged = socket.socketpair()
        self._signal, self._signalled = socket.socketpair()
        self._is_signalled = False
        self.status_event = threading.Event()
        self.eof_received = self.closed = False
        self.lost = ""
        """Why it ended without the program's exit code; empty: it has one, or runs."""
        for each in (self._nudge, self._nudged):
            each.setblocking(False)

    def exec_command(self, command: str) -> None:
        """Start the program. KubeError."""
        response, first = self._start(command)
        self._in += first
        wire = Wire(response, self._nudged)
        threading.Thread(target=self._move, args=(wire,), daemon=True).start()

    # --- what the program's user calls ---

    def settimeout(self, seconds: float | None) -> None:
        """Limit how long sending and receiving wait; None: for ever."""
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        """Send to the program's stdin. TimeoutError; OSError if the program has ended."""
        view = memoryview(data)
        while view:
            with self._change:
                self._await(lambda: len(self._in) < _WAITING or self.closed)
                if self.closed:
                    raise OSError(self.lost or "the program has ended")
                self._in += view[:_CHUNK]
                view = view[_CHUNK:]
            self._wake()

    def shutdown_write(self) -> None:
        """End the program's stdin."""
        self._wants_eof = True
        self._wake()

    def recv_ready(self) -> bool:
        """Whether `recv` would return something now."""
        return bool(self._out[STDOUT])

    def recv_stderr_ready(self) -> bool:
        """Whether `recv_stderr` would return something now."""
        return bool(self._out[STDERR])

    def recv(self, nbytes: int, /) -> bytes:
        """At most so many bytes of stdout; none at its end. TimeoutError."""
        return self._take(STDOUT, nbytes)

    def recv_stderr(self, nbytes: int, /) -> bytes:
        """The same of stderr."""
        return self._take(STDERR, nbytes)

    def makefile(self, _mode: str = "r") -> io.TextIOWrapper:
        """stdout as a text file."""
        return _text(self.recv)

    def makefile_stderr(self, _mode: str = "r") -> io.TextIOWrapper:
        """stderr as a text file."""
        return _text(self.recv_stderr)

    def exit_status_ready(self) -> bool:
        """Whether the program has ended, or was lost."""
        return self.status_event.is_set()

    def recv_exit_status(self) -> int:
        """Wait for the program's end; -1 if it was lost."""
        self.status_event.wait()
        return -1 if self._code is None else self._code

    def fileno(self) -> int:
        """Readable while there is output to read, and after its end."""
        return self._signalled.fileno()

    def close(self) -> None:
        """Close the connection: the program's stdin ends, and with it what watches that (node/guard.sh)."""
        self._wants_close = True
        self._wake()

    def __enter__(self) -> ExecChannel:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _take(self, stream: int, most: int) -> bytes:
        with self._change:
            self._await(lambda: bool(self._out[stream]) or self.eof_received)
            data = bytes(self._out[stream][:most])
            del self._out[stream][:most]
            self._set_signal()
        self._wake()
        return data

    def _await(self, true: Callable[[], bool]) -> None:
        if not self._change.wait_for(true, self._timeout):
            raise TimeoutError(f"nothing moved for {self._timeout:g} s")

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake already, or has ended
            self._nudge.send(b"x")

    def _set_signal(self) -> None:
        """Make `fileno` readable or not. Called with the lock."""
        wanted = bool(self._out[STDOUT] or self._out[STDERR] or self.eof_received)
        if wanted and not self._is_signalled:
            self._signal.send(b"x")
        elif self._is_signalled and not wanted:
            self._signalled.recv(1)
        self._is_signalled = wanted

    # --- the thread ---

    def _move(self, wire: Wire) -> None:
        """Move bytes until the program has ended, the connection is lost, or it is closed here."""
        why = ""
        try:
            self._exchange(wire)
        except Broken as error:
            why = str(error)
        except (OSError, ssl.SSLError) as error:
            why = f"the connection was lost: {error}"
        finally:
            with self._change:
                if self._code is None and not self._wants_close:
                    self._on_lost()
                if self._code is None:
                    self.lost = why or ("closed here" if self._wants_close else "the connection was closed")
                self.eof_received = self.closed = True
                self._set_signal()
                self.status_event.set()
                self._change.notify_all()
            wire.close()

    def _exchange(self, wire: Wire) -> None:
        heard = asked = time.monotonic()
        while True:
            moved, now = self._send(wire), time.monotonic()
            if sum(map(len, self._out.values())) < _UNREAD and (got := wire.receive()):
                heard, moved = now, True
                for stream, data, is_end in got:
                    self._received(stream, data, is_end=is_end)
            if self._code is not None or self._wants_close or (wire.is_closed and not wire.receive()):
                return
            if now - heard > keepalive.DEAD:
                raise Broken(f"no sign of life for {keepalive.DEAD:g} s")
            if now - max(heard, asked) > keepalive.INTERVAL:
                wire.ping()
                asked = now
            if not moved:
                wire.wait(_POLL)

    def _send(self, wire: Wire) -> bool:
        """Send a part of stdin, if the network takes it; whether it did."""
        if wire.is_full:
            return wire.flush()
        with self._change:
            data = bytes(self._in[:_CHUNK])
            del self._in[: len(data)]
            self._change.notify_all()
        if data:
            wire.send(bytes([STDIN]) + data)
        elif self._wants_eof:
            self._wants_eof = False
            wire.send(bytes([CLOSE, STDIN]))
        return wire.flush()

    def _received(self, stream: int, data: bytes, *, is_end: bool) -> None:
        """Take a part of a message; `is_end`: its last one."""
        with self._change:
            if stream in self._out:
                self._out[stream] += data
            elif stream == STATUS:
                self._status += data
                if len(self._status) > _LONGEST_STATUS:
                    raise Broken("the API's account of the program's end is too long")
                if is_end:
                    self._code = exit_code(bytes(self._status))
            elif data:
                raise Broken(f"the API sent something on stream {stream}, which does not exist")
            self._set_signal()
            self._change.notify_all()


def exit_code(status: bytes) -> int:
    """The program's exit code in the Status that the API sends at its end. Broken, with the reason, if the program was
    not run to its end, or if the status cannot be read."""
    try:
        found = json.loads(status)
        if found["status"] == "Success":
            return 0
        if found.get("reason") == "NonZeroExitCode":
            codes = [int(one["message"]) for one in found["details"]["causes"] if one["reason"] == "ExitCode"]
            return codes[0]
        message = _URL.sub("", " ".join(str(found["message"]).split()))[:300]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise Broken(f"the API's account of the program's end cannot be read: {status[:80]!r}") from None
    raise Broken(f"the program was not run to its end: {message}")


def _text(receive: Callable[[int], bytes]) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedReader(_Raw(receive)), encoding="utf-8", errors="replace", newline="\n")


class _Raw(io.RawIOBase):
    """Bytes that a function receives, as a file."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)
