"""Collect facts from all nodes at once; yield each fact as soon as every node has answered."""

from __future__ import annotations

import queue
import random
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import paramiko

from fabfile.check.session import ProbeError, Running, Session
from fabfile.remote.ended import WHY, is_gone
from fabfile.remote.fleet import Fleet, SshError
from infra.inventory import Node, SshCluster

NODE_FACTS = ("record", "disk", "memory", "tcmalloc", "cpu", "launch")
PEER_FACTS = ("names", "ports", "ssh")
ALL_FACTS = ("reach", "clock", *NODE_FACTS, *PEER_FACTS)
DEADLINE_S = 45.0
"""Limit for all questions to one node; its SSH to many other nodes takes longest."""
UNREACHED = "not reached"
"""Why a fact is missing, for a node that the check `reach` has already named."""

# Below Linux's range of outgoing ports, so that none of those is in use here; several, as one may be taken.
PORT_RANGE = range(20000, 32000)
PORTS_TRIED = 5

Report = tuple[str, str, Any, str]
"""(node, fact, value, why it is missing)"""
TROUBLE = (ProbeError, SshError, paramiko.SSHException, EOFError, OSError)
"""The errors that the connection to a node, or a program on it, can raise."""


@dataclass
class Fact:
    """One fact, by node."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Nodes without the fact, and why."""


class Gathering:
    """Collects the facts about a cluster's nodes, over one connection to each."""

    def __init__(self, cluster: SshCluster, fleet: Fleet) -> None:
        self.cluster = cluster
        self.sessions: dict[str, Session] = {}
        self._fleet = fleet
        self._running: list[Running] = []
        self._reports: queue.Queue[Report] = queue.Queue()
        self._agreed = {
            "token": secrets.token_hex(16),
            "ports": random.sample(PORT_RANGE, PORTS_TRIED),
            "peers": [{"name": node.name, "ip": node.private_ip} for node in cluster.nodes],
        }

    def facts(self) -> Iterator[Fact]:
        """Yield each fact once, as soon as every node has reported it or failed."""
        names = {node.name for node in self.cluster.nodes}
        open_facts = {name: Fact(name) for name in ALL_FACTS}
        for node in self.cluster.nodes:
            threading.Thread(target=self._ask, args=(node,), daemon=True).start()
        try:
            while open_facts:
                node_name, fact_name, value, why = self._reports.get()
                fact = open_facts[fact_name]
                if why:
                    fact.missing[node_name] = why
                else:
                    fact.values[node_name] = value
                if names == fact.values.keys() | fact.missing.keys():
                    yield open_facts.pop(fact_name)
        finally:
            for running in self._running:
                running.stop()

    def _ask(self, node: Node) -> None:
        """Collect all facts about one node. Runs in a thread per node."""
        telling = Telling(node.name, self._reports)
        try:
            with telling.of("reach"):
                if is_gone(node):
                    raise SshError(f"{node.name}: {WHY}")
                self.sessions[node.name] = Session(self._fleet, node)
                telling.tell("reach", {})
            if session := self.sessions.get(node.name):
                self._ask_reached(session, telling)
            else:
                telling.give_up(UNREACHED)
        finally:
            telling.give_up("the probe did not tell")

    def _ask_reached(self, session: Session, telling: Telling) -> None:
        with telling.of("clock"):
            telling.tell("clock", session.clock())
        with telling.of(*PEER_FACTS):
            # Both programs at once; the second's output waits in its channel while the first's is read.
            peers = self._start(session, "peers", {**self._agreed, "name": session.node.name})
            with telling.of(*NODE_FACTS):
                spec = {"shared_dir": self.cluster.shared_dir, "memory_gb": session.node.memory_gb}
                _hear(self._start(session, "facts", spec), telling)
            _hear(peers, telling, until=PEER_FACTS[-1])

    def _start(self, session: Session, program: str, spec: dict[str, Any]) -> Running:
        running = session.run(program, spec, timeout=DEADLINE_S)
        self._running.append(running)
        return running


class Telling:
    """The facts still expected from one node. Whatever fails, each is reported, with its value or as missing."""

    def __init__(self, node: str, reports: queue.Queue[Report]) -> None:
        self._node = node
        self._reports = reports
        self._left = list(ALL_FACTS)

    def tell(self, fact: str, value: Any) -> None:
        self._left.remove(fact)
        self._reports.put((self._node, fact, value, ""))

    @contextmanager
    def of(self, *facts: str) -> Iterator[None]:
        """Report these facts as missing if the body raises one of TROUBLE."""
        try:
            yield
        except TROUBLE as error:
            self.give_up(" ".join(str(error).split()) or type(error).__name__, facts)

    def give_up(self, why: str, facts: Sequence[str] = ALL_FACTS) -> None:
        for fact in [fact for fact in self._left if fact in facts]:
            self._left.remove(fact)
            self._reports.put((self._node, fact, None, why))


def _hear(running: Running, telling: Telling, *, until: str = "") -> None:
    """Report a probe's facts. A probe that runs on until it is let go is read only up to the fact `until`."""
    for event in running.events():
        telling.tell(event["fact"], event["value"])
        if event["fact"] == until:
            return
