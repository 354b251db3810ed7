"""`fab wait`: follow the boot of each node, live, until all are ready or one has failed."""

from __future__ import annotations

import json
import os
import queue
import shlex
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import paramiko
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.command_line import AtLeast
from fabfile.output import colour, next_command, say
from fabfile.remote.command import follow
from fabfile.remote.ended import MEND, WHY, is_gone
from fabfile.remote.fleet import Fleet, HostKeyError, SshError
from fabfile.remote.join import join
from fabfile.targets import load
from infra.inventory import Node
from node import FOLDER

_FOLLOWER = (FOLDER / "boot.sh").read_text()
_POLL_SECONDS = 0.3
_REACH_SECONDS = 1.0  # limit of one TCP attempt: a node that boots meanwhile answers the next
_LONG_STEP_SECONDS = 3.0
_LOOK_SECONDS = 0.5  # between two checks that the nodes' machines still exist
_QUIET_SECONDS = 5.0  # without output, after which a line lists the nodes that are not ready
_CONSOLE_LINES = 15
_CONSOLE_BYTES = 65536
_CONSOLE_WIDTH = 300  # sudo writes whole programs on one line

NEVER_BOOTSTRAPPED = "nobody has made this machine a node: fab bootstrap --inventory FILE does"

Record = Mapping[str, Any]


@task(help={"timeout": "seconds until a silent node ends the wait"})
def wait(_c: Context, timeout: Annotated[float, AtLeast(0)] = 600.0, stack: str = "", inventory: str = "") -> None:
    """Follow the nodes' boot until all are ready, then let them know each other."""
    cluster = load(stack, inventory)
    with Fleet(cluster) as fleet:
        began = time.monotonic()
        follow_boot(fleet, timeout)
        joined = join(fleet)
        if joined:
            say(f"joined: every node knows the others' names, addresses and host keys ({len(joined)} changed)")
        count = len(cluster.nodes)
        say(f"{count} node{'s' * (count > 1)} of {cluster.name} ready in {time.monotonic() - began:.1f} s")
        say(next_command("fab check"))


@dataclass
class Progress:
    """The state of one node's boot. Its methods take events and return the lines to print."""

    node: Node
    began: float
    state: str = "silent"
    """silent (nothing heard yet), booting, ready or failed"""
    seen: str = "nothing"
    """The last thing seen of the node, for the message that it is not ready."""
    record: Record = field(default_factory=dict)
    _step: str = ""
    _step_began: float = 0.0
    _step_told: bool = False

    def unreached(self, reason: str, _now: float) -> list[str]:
        lost = self.state == "booting"
        self.state, self.seen = "silent", reason
        return [f"connection lost, trying again: {reason}"] if lost else []

    def answers(self, now: float) -> list[str]:
        self.state, self.seen = "booting", "ssh answers, but the bootstrap has not begun"
        return [f"ssh answers ({now - self.began:.1f} s)"]

    def told(self, line: str, now: float) -> list[str]:
        """A line of node/boot.sh."""
        word, _, rest = line.partition(" ")
        if word == "bare":
            self.state = "failed"
            self.record = {"step": "none", "reason": NEVER_BOOTSTRAPPED}
            return []
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
        return self._told_step(record, now) if word == "step" else self._told_end(word, record, now)

    def tick(self, now: float) -> list[str]:
        """Report a long step, once, while it runs."""
        if not self._step or self._step_told or now - self._step_began < _LONG_STEP_SECONDS:
            return []
        self._step_told = True
        return [f"step {self._step} …"]

    def _told_step(self, event: Record, now: float) -> list[str]:
        step, state = str(event.get("step")), event.get("state")
        if state == "start":
            self._step, self._step_began, self._step_told = step, now, False
            self.seen = f"step {step} has begun"
            return []
        self._step = ""
        self.seen = f"step {step} is {state}"
        seconds = event.get("seconds")
        taken = f"{seconds:.1f} s" if isinstance(seconds, int | float) else ""
        return [f"step {step} … {taken}" + (" FAILED" if state == "failed" else "")]

    def _told_end(self, word: str, record: Record, now: float) -> list[str]:
        wrong = ""
        if record.get("mode") == "bake":
            wrong = "this machine has baked an image (TRAINYARD_MODE=bake) and is no node of a cluster"
        elif record.get("node") not in (None, "", self.node.name):
            wrong = f"the record is of {record['node']!r}: TRAINYARD_NODE is not what the inventory says"
        if wrong:  # the record is of this boot, so waiting would not change it
            self.state, self.record = "failed", {"step": "record", "reason": wrong}
            return []
        self.state, self.record, self._step = word, record, ""
        return [f"ready ({now - self.began:.1f} s): {software(record)}"] if word == "ready" else []


def software(record: Record) -> str:
    """A ready record in a few words: `torch 2.13.0, 2 cores, no AMX`."""
    cpu, versions = record.get("cpu") or {}, record.get("versions") or {}
    cores = cpu.get("cores", "?")
    parts = [f"torch {versions.get('torch', 'missing')}", f"{cores} core{'s' * (cores != 1)}"]
    return ", ".join([*parts, "AMX" if cpu.get("amx") else "no AMX"])


class Watch:
    """Follow all nodes at once: a thread per node listens, the caller's thread prints and decides."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._events: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
        self._over = threading.Event()

    def start(self) -> None:
        for node in self._fleet.cluster.nodes:
            threading.Thread(target=self._listen, args=(node,), daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def next(self, seconds: float) -> tuple[str, str, str] | None:
        """The next (node, kind, text); kind is unreached, answers, line or refused."""
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def _listen(self, node: Node) -> None:
        """Until stopped: reach the node, then pass on the lines of node/boot.sh. Its last line is the record."""
        command = f"exec bash --norc -c {shlex.quote(_FOLLOWER)}"
        while not self._over.is_set():
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
            self._over.wait(_POLL_SECONDS)


def follow_boot(fleet: Fleet, timeout: float) -> dict[str, Record]:
    """Print the boot's events until every node is ready; returns their records by name. Exit 1 once one has failed,
    or after `timeout` seconds."""
    began = time.monotonic()
    nodes = {node.name: Progress(node, began) for node in fleet.cluster.nodes}
    watch = Watch(fleet)
    watch.start()
    looked, said = began - _LOOK_SECONDS, began
    try:
        while any(progress.state != "ready" for progress in nodes.values()):
            event = watch.next(0.2)
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                _end_for_gone([progress for progress in nodes.values() if is_gone(progress.node)], nodes)
            if event is not None and _handle(nodes[event[0]], event[1], event[2], now):
                said = now
            for progress in nodes.values():
                if _print(progress.node, progress.tick(now)):
                    said = now
            if now - said >= _QUIET_SECONDS:
                said = now
                say(_waiting(list(nodes.values()), now - began))
            if now - began > timeout:
                raise Exit(_silent(nodes, timeout), code=1)
    finally:
        watch.stop()
    return {name: progress.record for name, progress in nodes.items()}


def _handle(progress: Progress, kind: str, text: str, now: float) -> bool:
    """Handle an event; returns whether it printed a line. Exit 1 for an event that ends the wait."""
    if kind == "refused":
        raise Exit(text, code=1)
    if kind == "unreached":
        lines = progress.unreached(text, now)
    elif kind == "answers":
        lines = progress.answers(now)
    else:
        lines = progress.told(text, now)
    printed = _print(progress.node, lines)
    if progress.state == "failed":
        raise Exit(_failure(progress), code=1)
    return printed


def _print(node: Node, lines: list[str]) -> bool:
    for line in lines:
        say(f"{colour(node.name, 'cyan')}  {line}")
    return bool(lines)


def _waiting(nodes: list[Progress], seconds: float) -> str:
    """`waiting for 2 of 3 nodes (15 s): node2: step torch has begun; node3: Connection refused`."""
    late = [progress for progress in nodes if progress.state != "ready"]
    listed = "; ".join(f"{progress.node.name}: {progress.seen[:100]}" for progress in late[:4])
    more = f"; and {len(late) - 4} more" if len(late) > 4 else ""
    return f"waiting for {len(late)} of {len(nodes)} nodes ({seconds:.0f} s): {listed}{more}"


def _end_for_gone(gone: list[Progress], nodes: Mapping[str, Progress]) -> None:
    """Exit 1 if machines have ended: waiting does not bring them back."""
    if not gone:
        return
    lines = [f"{len(gone)} of {len(nodes)} nodes are gone"]
    for progress in gone:
        lines.append(f"{colour(progress.node.name, 'red', file=sys.stderr)}  {WHY}")
        lines += [f"    {line}" for line in _console_tail(progress.node)]
    raise Exit("\n".join([*lines, next_command(MEND)]), code=1)


def _failure(progress: Progress) -> str:
    record = progress.record
    log = record.get("log") or []
    head = f"{progress.node.name}  failed at step {record.get('step')}: {record.get('reason')}"
    return "\n".join(
        [
            colour(head, "red", file=sys.stderr),
            *(f"    {line}" for line in log),
            next_command(f"fab ssh {progress.node.name}"),
        ]
    )


def _silent(nodes: Mapping[str, Progress], timeout: float) -> str:
    late = [progress for progress in nodes.values() if progress.state != "ready"]
    lines = [f"{len(late)} of {len(nodes)} nodes not ready after {timeout:g} s"]
    for progress in late:
        lines.append(f"{progress.node.name}  last seen: {progress.seen}")
        lines += [f"    {line}" for line in _console_tail(progress.node)]
    return "\n".join([*lines, next_command("fab status")])


def _console_tail(node: Node) -> list[str]:
    if not node.console:
        return []
    try:
        with Path(node.console).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _CONSOLE_BYTES))  # the console log has no size limit
            lines = file.read(_CONSOLE_BYTES).decode(errors="replace").splitlines()
            tail = [line.rstrip()[:_CONSOLE_WIDTH] for line in lines if line.strip()][-_CONSOLE_LINES:]
    except OSError as error:
        return [f"console {node.console}: {error.strerror}"]
    return [f"console {node.console}:", *tail]
