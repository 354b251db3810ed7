"""Has every node say every second what it does, and keeps the newest of each; a lost connection is made anew."""

from __future__ import annotations

import json
import threading
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import paramiko
from invoke.exceptions import Exit

from fabfile.backends.ssh.head import runs
from fabfile.remote import node_program
from fabfile.remote.command import last_words
from fabfile.remote.fleet import Connections
from fabfile.remote.known_hosts import SshError
from infra.inventory import Node

_SILENCE = 10.0  # seconds without a sample after which a connection counts as lost
_AGAIN = 2.0  # seconds before it is made anew
_MOST = 4 << 20  # characters of a sample; a longer one is an error
_LIMITS = "run/trainyard/limits.json"


@dataclass(frozen=True)
class News:
    """What is known of a node."""

    sample: dict[str, Any]  # the newest, see node/top.py; empty: none has come yet
    age: float  # seconds since it came, or since the first question
    trouble: str  # why no new one comes, in one line; empty: they come


class Watcher:
    """The nodes of a cluster, each asked by a thread of its own until the end of the `with` block."""

    def __init__(self, fleet: Connections, seconds: float) -> None:
        self._fleet, self._seconds = fleet, seconds
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._samples: dict[str, tuple[float, int, dict[str, Any]]] = {}
        self._trouble: dict[str, str] = {}

    def __enter__(self) -> Watcher:
        for node in self._fleet.cluster.nodes:
            start_new_thread(self._follow, (node,))
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._fleet.close()

    def news(self) -> dict[str, News]:
        """What is known of each node now."""
        now, found = time.monotonic(), {}
        for node in self._fleet.cluster.nodes:
            when, _, sample = self._samples.get(node.name, (self._began, 0, {}))
            found[node.name] = News(sample, now - when, self._trouble.get(node.name, ""))
        return found

    def wait(self, samples: int, seconds: float) -> None:
        """Wait until every node has sent so many samples, or cannot, but not longer than this."""
        deadline = time.monotonic() + seconds
        names = [node.name for node in self._fleet.cluster.nodes]
        while time.monotonic() < deadline and not self._ended.wait(0.05):
            if all(self._trouble.get(name) or self._samples.get(name, (0.0, 0))[1] >= samples for name in names):
                return

    def _follow(self, node: Node) -> None:
        """Take a node's samples, for ever; in a thread of its own, which Ctrl-C does not interrupt."""
        while not self._ended.is_set():
            try:
                for sample in self._stream(node):
                    count = self._samples.get(node.name, (0.0, 0))[1] + 1
                    self._samples[node.name] = (time.monotonic(), count, sample)
                    self._trouble.pop(node.name, None)
            except (SshError, Exit, paramiko.SSHException, EOFError, OSError, ValueError) as error:
                self._trouble[node.name] = " ".join(str(error).split()) or "the connection was lost"
            self._ended.wait(_AGAIN)

    def _stream(self, node: Node) -> Iterator[dict[str, Any]]:
        """A node's samples as they come. OSError or SshError at their end."""
        connection = self._fleet.connection(node)
        role = "head" if node == self._fleet.cluster.head else "worker"
        argv = ("top", f"{self._seconds:g}", runs(self._fleet.cluster), role, _LIMITS)
        with connection.create_session() as channel:
            channel.settimeout(max(_SILENCE, 3 * self._seconds))
            channel.exec_command(node_program.command(*argv))
            lines = channel.makefile("r")
            try:
                while line := lines.readline(_MOST):
                    sample = json.loads(line)
                    if isinstance(sample, dict):
                        yield sample
            except TimeoutError:
                connection.close()  # it may be half-open: the next one is a new one
                raise OSError(f"no answer for {max(_SILENCE, 3 * self._seconds):g} s") from None
            code = channel.recv_exit_status()
            if code == node_program.MISSING:
                node_program.put(connection)
                with suppress(KeyError):
                    del self._trouble[node.name]
                yield from self._stream(node)
            raise OSError("the connection was lost" if code < 0 else last_words(channel, f"exit code {code}"))
