"""Start probes on a node over one strict connection; they answer in lines of JSON."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import paramiko

from fabfile.remote import node_program
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import SshError
from infra.inventory import Node
from node.job.files import parsed

POLL_S = 0.05

Event = dict[str, Any]


class ProbeError(Exception):
    """A program on a node failed: one line, without the node's name."""


TROUBLE = (ProbeError, SshError, paramiko.SSHException, EOFError, OSError)
"""The errors that the connection to a node, or a program on it, can raise."""


@dataclass
class Running:
    """A program that runs on a node until its events end, or until it is let go."""

    channel: paramiko.Channel
    deadline: float
    quiet: float = float("inf")
    """Seconds without an event after which it counts as hung."""
    noise: str = ""
    """The end of its other output, which is not events."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def events(self) -> Iterator[Event]:
        """Yield its lines of JSON as they come; ProbeError if it is late, breaks off or fails."""
        rest = b""
        heard = time.monotonic()
        while not self._stopped.is_set():
            if time.monotonic() > self.deadline:
                raise ProbeError("no answer within its time")
            if time.monotonic() > heard + self.quiet:
                raise ProbeError(f"silent for {self.quiet:.0f} s")
            self._hear_errors()
            # Check for the end before reading: output that came before the end is then never lost.
            ended = self.channel.exit_status_ready()
            if self.channel.recv_ready():
                heard = time.monotonic()
                *lines, rest = (rest + self.channel.recv(1 << 16)).split(b"\n")
                yield from self._parse(lines)
            elif ended or self.channel.closed:
                yield from self._parse([rest])
                self._hear_errors()
                if not self.channel.exit_status_ready():
                    raise ProbeError("the connection broke")
                if code := self.channel.recv_exit_status():
                    raise ProbeError(self.complaint() or f"ended with exit code {code}")
                return
            else:
                time.sleep(POLL_S)

    def let_go(self) -> None:
        """Close the program's stdin: it ends with everything that it started."""
        with suppress(OSError, EOFError):  # the connection may already be lost
            self.channel.shutdown_write()

    def stop(self) -> None:
        """End `events` too; may be called from another thread."""
        self.let_go()
        self._stopped.set()

    def _parse(self, lines: list[bytes]) -> Iterator[Event]:
        for text in (line.decode(errors="replace").strip() for line in lines):
            if event := parsed(text):
                yield event
            else:
                self._hear(text)

    def _hear_errors(self) -> None:
        while self.channel.recv_stderr_ready():
            self._hear(self.channel.recv_stderr(1 << 16).decode(errors="replace"))

    def _hear(self, text: str) -> None:
        self.noise = f"{self.noise}\n{text}"[-4000:]

    def complaint(self) -> str:
        """Why it failed, from its output: ssh's line, else the last line, which in a traceback is the error."""
        lines = [line.strip() for line in self.noise.splitlines() if line.strip()]
        return next((line for line in lines if line.startswith("ssh:")), lines[-1] if lines else "")[:200]


class Session:
    """One open connection to a node."""

    def __init__(self, fleet: Fleet, node: Node) -> None:
        self.node = node
        self._connection = fleet.connection(node)

    def clock(self) -> tuple[float, float]:
        """(seconds that the node's clock is ahead of this machine's, the error of that in seconds): the node reads its
        clock at some moment of the round trip; the middle is assumed, which is off by half of it at most."""
        best = (0.0, float("inf"))
        for _ in range(3):
            before = time.time()
            theirs = self.output("date +%s.%N", timeout=10).strip()
            after = time.time()
            if not re.fullmatch(r"\d+\.\d+", theirs):
                raise ProbeError(f"says {theirs[:80]!r} when asked for the time")
            best = min(best, (float(theirs) - (before + after) / 2, (after - before) / 2), key=lambda pair: pair[1])
        return best

    def output(self, command: str, *, timeout: float) -> str:
        """A short command's output; ProbeError if it fails."""
        channel = self._start(command, timeout)
        with channel:
            try:
                text = b"".join(iter(lambda: channel.recv(1 << 16), b"")).decode(errors="replace")
            except TimeoutError:
                raise ProbeError(f"no answer in {timeout:.0f} s") from None
            if code := channel.recv_exit_status():
                raise ProbeError(f"{command.split()[0]} ended with exit code {code}")
        return text

    def run(self, probe: str, spec: Mapping[str, Any], *, timeout: float) -> Running:
        """Start a probe (see node/main.py) with its task; its stdin stays open until it is let go."""
        node_program.put(self._connection)
        channel = self._start(node_program.command(probe), timeout)
        channel.sendall(json.dumps(spec).encode() + b"\n")
        return Running(channel, time.monotonic() + timeout)

    def _start(self, command: str, timeout: float) -> paramiko.Channel:
        channel: paramiko.Channel = self._connection.create_session()
        channel.settimeout(timeout)
        channel.exec_command(command)
        return channel
