"""Send bytes to a command on a node: text, a vocabulary, a token set, the bootstrap's files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import paramiko

from fabfile.output import Progress, prefixed, say
from fabfile.remote.command import exit_status, last_words
from fabfile.remote.fleet import Connections, in_parallel
from fabfile.remote.keepalive import why_lost
from fabfile.remote.known_hosts import SshError
from infra.inventory import Node


class SendError(Exception):
    """The command failed or was lost: why, in one line."""


class Out(Protocol):
    """What is written to it reaches the command's stdin."""

    def write(self, data: Any, /) -> int:
        """Send all of these bytes; returns how many. OSError if the command takes none for the `seconds` of `send`."""


def send(
    fleet: Connections, node: Node, command: str, fill: Callable[[Out], object], *, seconds: float, total: int = 0
) -> None:
    """Run a command on a node whose input `fill` writes. With a `total` of bytes it prints every few seconds how many
    were sent. SendError if it fails, or if nothing can be sent, or it does not end, for so many seconds."""
    # In a thread: paramiko takes its locks where Ctrl-C, which comes to the main thread, could leave them taken.
    in_parallel(lambda one: _send(fleet, one, command, fill, seconds, total), [node])


def _send(
    fleet: Connections, node: Node, command: str, fill: Callable[[Out], object], seconds: float, total: int
) -> None:
    channel: Any = None
    try:
        with fleet.connection(node).create_session() as channel:
            channel.settimeout(seconds)
            channel.exec_command(command)
            fill(_Input(channel, Progress(total, lambda line: say(prefixed(node.name, line)))))
            channel.shutdown_write()
            if code := exit_status(channel, seconds):
                raise SendError(last_words(channel, f"exit code {code}"))
    except (SshError, paramiko.SSHException, EOFError, OSError) as error:
        lost = [why_lost(channel)] if channel is not None and channel.closed else []
        raise SendError(": ".join(dict.fromkeys([*lost, str(error)]))) from None


class _Input:
    def __init__(self, channel: Any, progress: Progress) -> None:
        self._channel, self._progress = channel, progress

    def write(self, data: bytes, /) -> int:
        self._channel.sendall(data)
        self._progress(len(data))
        return len(data)
