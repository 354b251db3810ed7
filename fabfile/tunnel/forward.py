"""Forwards connections from a port of this machine to one of a node, until it is stopped."""

from __future__ import annotations

import select
import socket
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import paramiko
from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.remote.known_hosts import SshError
from fabfile.tunnel.dial import Dialler, NobodyListens

_LOOK = 0.2  # seconds between two looks whether it is to end
_AGAIN = 30.0  # seconds after which the same trouble is said once more
_CHUNK = 1 << 16


class Forward:
    """Moves the bytes of every connection that a listening socket gets. Trouble with the node is said, and the next
    connection tries again."""

    def __init__(self, listener: socket.socket, dialler: Dialler, port: Callable[[], int]) -> None:
        self.stopped = threading.Event()
        self.address = "{}:{}".format(*listener.getsockname())
        """Where it listens: `127.0.0.1:6006`."""
        self._listener, self._dialler, self._port = listener, dialler, port
        self._said, self._when = "", 0.0

    def run(self) -> None:
        """Accept connections until `stopped` is set, or Ctrl-C; each is served by threads of its own, as paramiko must
        not meet Ctrl-C (see fabfile.remote.fleet.apart)."""
        with self._listener:
            while not self.stopped.is_set():
                if select.select([self._listener], [], [], _LOOK)[0]:
                    with suppress(ConnectionError):  # it has gone again
                        start_new_thread(self._serve, (self._listener.accept()[0],))

    def _serve(self, client: socket.socket) -> None:
        node, port = self._dialler.node.name, self._port()
        with client:
            try:
                channel = self._dialler.dial(port)
            except NobodyListens as error:
                self._say(f"{node}: nothing listens on port {port} there: {error}")
                return
            except (SshError, Exit) as error:
                self._say(f"{error}; the next request tries again")
                return
            if self._said:
                self._said = ""
                say(f"{node}: port {port} answers")
            start_new_thread(_up, (client, channel))
            _down(channel, client)

    def _say(self, line: str) -> None:
        """Say it, unless it was just said: a browser asks many times a second."""
        now = time.monotonic()
        if line != self._said or now - self._when > _AGAIN:
            self._said, self._when = line, now
            say(line)


def until_interrupted(forward: Forward) -> None:
    """Forward until Ctrl-C, which is how this ends."""
    try:
        forward.run()
    except KeyboardInterrupt:
        say(f"{forward.address} is closed")


_ENDED = (OSError, EOFError, paramiko.SSHException)


def _up(client: socket.socket, channel: Any) -> None:
    """Move what the client sends, to its end. One that breaks off takes its connection to the node along."""
    try:
        while data := client.recv(_CHUNK):
            channel.sendall(data)
        channel.shutdown_write()
    except _ENDED:
        with suppress(*_ENDED):
            channel.close()


def _down(channel: Any, client: socket.socket) -> None:
    """Move what the node sends, to its end; then the connection is over, for the client too."""
    with suppress(*_ENDED):
        while data := channel.recv(_CHUNK):
            client.sendall(data)
    with suppress(*_ENDED):
        client.shutdown(socket.SHUT_RDWR)
    with suppress(*_ENDED):
        channel.close()
