"""WebSocket messages over an upgraded HTTP connection, without waiting: wsproto makes and reads the frames."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Any

_READ = 64 << 10
_LEADING = 0.001  # seconds for what came with the answer to the upgrade, and is there already
_BLOCKED = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)

_PLAIN_ENDS = (1000, 1001, 1005, 1006)  # done, going away, no code, no word at all

Part = tuple[int, bytes, bool]
"""A message's stream, its bytes (all, or a part of them), and whether it ends with them."""
NOTHING: Part = (255, b"", False)
"""No message's, but a sign of life: a pong, or the beginning of a frame."""


class Broken(Exception):
    """The connection cannot be used any more: one line."""


class Wire:
    """One connection. Used by one thread."""

    def __init__(self, response: Any, nudged: socket.socket) -> None:
        """`response`: httpx2's to the upgrade; `nudged`: becomes readable when `wait` is to end."""
        import httpcore2
        from wsproto.connection import Connection, ConnectionType

        self._response, self._nudged = response, nudged
        stream = response.extensions["network_stream"]
        self._frames = Connection(ConnectionType.CLIENT)
        self._unsent = b""
        self._wrong = ""  # why the other side closed, where that is no plain end
        self._of = -1  # the stream of the message that is being received; -1: none is
        self.is_closed = False
        with contextlib.suppress(httpcore2.ReadTimeout):
            if early := stream.read(_READ, timeout=_LEADING):
                self._frames.receive_data(early)
        self._socket: socket.socket = stream.get_extra_info("socket")
        self._socket.setblocking(False)

    @property
    def is_full(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Have a message sent by the next calls of `flush`."""
        from wsproto.events import BytesMessage

        self._unsent += self._frames.send(BytesMessage(data=message))

    def ping(self) -> None:
        """Ask the other side for an answer."""
        from wsproto.events import Ping

        self._unsent += self._frames.send(Ping())

    def flush(self) -> bool:
        """Send what the network takes; whether it took something. OSError."""
        if not self._unsent:
            return False
        try:
            sent = self._socket.send(self._unsent)
        except _BLOCKED:
            return False
        self._unsent = self._unsent[sent:]
        return sent > 0

    def receive(self) -> list[Part]:
        """What has come; nothing if that is nothing. OSError; Broken for what is no message of the API's."""
        parts = self._parts()
        if self._wrong and not parts:
            raise Broken(self._wrong)
        if parts or self.is_closed:
            return parts
        try:
            data = self._socket.recv(_READ)
        except _BLOCKED:
            return []
        self._frames.receive_data(data or None)
        if not data:
            self.is_closed = True
        return self._parts() or [NOTHING]

    def _parts(self) -> list[Part]:
        from wsproto import events

        found: list[Part] = []
        for event in self._frames.events():
            if isinstance(event, events.BytesMessage):
                found.append(self._part(bytes(event.data), is_end=event.message_finished))
            elif isinstance(event, events.Ping):
                self._unsent += self._frames.send(event.response())
            elif isinstance(event, events.CloseConnection):
                self.is_closed = True
                if event.code not in _PLAIN_ENDS:  # wsproto's own code, too, for what it cannot read
                    self._wrong = f"the connection was closed with code {event.code}: {event.reason or 'no reason'}"
            elif isinstance(event, events.TextMessage):
                raise Broken("the API sent text where bytes belong")
        return found

    def _part(self, data: bytes, *, is_end: bool) -> Part:
        if self._of < 0:
            if not data:
                raise Broken("the API sent a message of no stream")
            self._of, data = data[0], data[1:]
        part = (self._of, data, is_end)
        if is_end:
            self._of = -1
        return part

    def wait(self, seconds: float) -> None:
        """Wait until the network has something, or takes something that waits, or somebody nudges."""
        poller = select.poll()
        poller.register(self._socket.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poller.register(self._nudged.fileno(), select.POLLIN)
        poller.poll(seconds * 1000)
        with contextlib.suppress(OSError):
            self._nudged.recv(4096)

    def close(self) -> None:
        """Say that this side closes, as far as the network takes that, and close."""
        from wsproto.events import CloseConnection
        from wsproto.utilities import LocalProtocolError

        with contextlib.suppress(OSError, LocalProtocolError):
            self._socket.send(self._unsent + self._frames.send(CloseConnection(code=1000)))
        with contextlib.suppress(OSError):
            self._response.close()
