"""Follow the boot of all nodes at once, by the lines of node/boot.sh, which runs on each."""

from __future__ import annotations

import json
import math
import queue
import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import paramiko

from fabfile.remote.command import follow
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import HostKeyError, SshError
from infra.inventory import Node
from node import FOLDER

NEVER_BOOTSTRAPPED = "this machine is not a node yet; run: fab bootstrap --inventory FILE"
_FOLLOWER = (FOLDER / "boot.sh").read_text()
_POLL_SECONDS = 0.3
_REACH_SECONDS = 1.0  # limit of one TCP attempt: a node that boots meanwhile answers the next
_LONG_STEP_SECONDS = 3.0

Record = Mapping[str, Any]


@dataclass
class NodeBoot:
    """The state of one node's boot. Its methods take events and return the lines to print; `now` is in seconds."""

    node: Node
    began: float
    state: str = "silent"  # silent (nothing heard yet), booting, ready or failed
    seen: str = "nothing"  # the last event, for the message that the node is not ready
    record: Record = field(default_factory=dict)
    _step_began: float = math.inf
    """When the running step began; infinite: none runs, or it was reported as long."""
    _step: str = ""

    def unreached(self, reason: str, _now: float) -> list[str]:
        """The node does not answer, or no longer."""
        lost = self.state == "booting"
        self.state, self.seen = "silent", reason
        return [f"connection lost, trying again: {reason}"] if lost else []

    def answers(self, _text: str, now: float) -> list[str]:
        """SSH answers."""
        self.state, self.seen = "booting", "ssh answers, but the bootstrap has not begun"
        return [f"ssh answers ({now - self.began:.1f} s)"]

    def line(self, line: str, now: float) -> list[str]:
        """A line of node/boot.sh: `step`, `ready` or `failed` with a record, `bare`, or `unreadable` with a path."""
        word, _, rest = line.partition(" ")
        if word == "bare":
            return self._fail("none", NEVER_BOOTSTRAPPED)
        if word == "unreadable":
            self.seen = f"{rest} cannot be read"
            return []
        try:
            record = json.loads(rest)
            if not isinstance(record, dict):
                raise ValueError("not an object")
        except ValueError as error:
            self.seen = f"a {word} record that is not JSON ({error}): {rest[:200]}"
            return [self.seen]
        return self._stepped(record, now) if word == "step" else self._ended(word, record, now)

    def tick(self, now: float) -> list[str]:
        """Report a long step, once, while it runs."""
        if now - self._step_began < _LONG_STEP_SECONDS:
            return []
        self._step_began = math.inf
        return [f"step {self._step} …"]

    def _stepped(self, event: Record, now: float) -> list[str]:
        self._step, state = str(event.get("step")), event.get("state")
        if state == "start":
            self._step_began = now
            self.seen = f"step {self._step} has begun"
            return []
        self._step_began = math.inf
        self.seen = f"step {self._step} is {state}"
        seconds = event.get("seconds")
        taken = f"{seconds:.1f} s" if isinstance(seconds, int | float) else ""
        return [f"step {self._step} … {taken}" + (" FAILED" if state == "failed" else "")]

    def _ended(self, word: str, record: Record, now: float) -> list[str]:
        # A record is of this boot, so waiting would not change a wrong one.
        if record.get("mode") == "bake":
            why = "this machine has baked an image (TRAINYARD_MODE=bake) and is no node of a cluster"
            return self._fail("record", why)
        if record.get("node") not in (None, "", self.node.name):
            why = f"the record is of {record['node']!r}: TRAINYARD_NODE is not what the inventory says"
            return self._fail("record", why)
        self.state, self.record, self._step_began = word, record, math.inf
        return [f"ready ({now - self.began:.1f} s): {software(record)}"] if word == "ready" else []

    def _fail(self, step: str, reason: str) -> list[str]:
        self.state, self.record = "failed", {"step": step, "reason": reason}
        return []


def software(record: Record) -> str:
    """A ready record in a few words: `torch 2.13.0, 2 cores, no AMX`."""
    cpu, versions = record.get("cpu") or {}, record.get("versions") or {}
    cores = cpu.get("cores", "?")
    parts = [f"torch {versions.get('torch', 'missing')}", f"{cores} core{'s' * (cores != 1)}"]
    return ", ".join([*parts, "AMX" if cpu.get("amx") else "no AMX"])


class Listeners:
    """A thread for each node, which passes its events on; they end with `close`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._events: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
        self._closed = threading.Event()
        for node in fleet.cluster.nodes:
            threading.Thread(target=self._listen, args=(node,), daemon=True).start()

    def close(self) -> None:
        """Let the threads end."""
        self._closed.set()

    def next(self, seconds: float) -> tuple[str, str, str]:
        """The next (node's name, kind, text); kind is unreached, answers, line or refused; empty: none came in time."""
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return ("", "", "")

    def _listen(self, node: Node) -> None:
        """Until closed: reach the node, then pass on the lines of node/boot.sh. Its last line is the record."""
        command = f"exec bash --norc -c {shlex.quote(_FOLLOWER)}"
        while not self._closed.is_set():
            try:
                channel = self._fleet.connection(node, _REACH_SECONDS).create_session()
                channel.exec_command(command)
                self._events.put((node.name, "answers", ""))
                result = follow(
                    node.name, channel, on_line=lambda name, _, line: self._events.put((name, "line", line))
                )
                if result.ok:
                    return
                reason = result.why
            except HostKeyError as error:
                self._events.put((node.name, "refused", str(error)))
                return
            except (SshError, paramiko.SSHException, EOFError, OSError) as error:
                reason = str(error)
            self._events.put((node.name, "unreached", reason))
            self._closed.wait(_POLL_SECONDS)
