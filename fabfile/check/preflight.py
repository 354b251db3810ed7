"""The pre-flight of a cluster: collects facts from all nodes at once and judges each as soon as every node has
answered; then runs mpirun and measures the network.
Where Slurm runs the jobs, asks Slurm and measures in one of its jobs instead."""

from __future__ import annotations

import queue
import random
import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fabfile.check import gpu_rules, launch, network_rules, node_rules, slurm
from fabfile.check.session import TROUBLE, Running, Session
from fabfile.check.verdict import UNREACHED, Fact, Verdict
from fabfile.launchers import SLURM
from fabfile.remote.ended import WHY, is_gone
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import SshError
from infra.inventory import Node, SshCluster

NODE_FACTS = ("record", "disk", "memory", "tcmalloc", "cpu", "launch")
PEER_FACTS = ("names", "ports", "ssh")
ALL_FACTS = ("reach", "clock", *NODE_FACTS, *PEER_FACTS)
NOT_OF_A_QUEUE = ("cpu", "names")
"""What is not judged of a head whose queue's machines compute: its processor, and its host name, which is Slurm's."""
DEADLINE_S = 45.0
"""Limit for all questions to one node; its SSH to many other nodes takes longest."""

# Below Linux's range of outgoing ports, so that none of those is in use here; several, as one may be taken.
PORT_RANGE = range(20000, 32000)
PORTS_TRIED = 5

Run = Callable[[SshCluster, launch.Sessions], launch.ProbeRun]
Judge = Callable[[SshCluster, launch.ProbeRun], Verdict]
Report = tuple[str, str, Any, str]
"""(node, fact, value, why it is missing)"""


def verdicts_of(cluster: SshCluster, fleet: Fleet) -> Generator[Verdict, None, None]:
    """Yield each check's verdict as soon as it is known."""
    collector = Collector(cluster, fleet)
    facts: dict[str, Fact] = {}
    for fact in collector.facts():
        facts[fact.name] = fact
        if fact.name in node_rules.RULES and not (cluster.queue and fact.name in NOT_OF_A_QUEUE):
            yield node_rules.verdict(cluster, fact)
    if cluster.launcher == SLURM:
        yield from slurm.verdicts_of(cluster, fleet, collector.sessions, facts)
        return
    checks: list[tuple[str, Run, Judge]] = [
        ("mpirun", launch.hello, network_rules.mpirun),
        ("all-reduce", launch.network, network_rules.network),
    ]
    if all(node.gpus for node in cluster.nodes):
        checks.append(("nccl", launch.nccl, gpu_rules.nccl))
    for name, run, judged in checks:
        one = network_rules.blocked(name, cluster, facts) or judged(cluster, run(cluster, collector.sessions))
        yield one
        if one.level == "fail":
            break  # the network is measured by ranks that mpirun starts


class Collector:
    """Collects the facts about a cluster's nodes, over one connection to each."""

    def __init__(self, cluster: SshCluster, fleet: Fleet) -> None:
        self.cluster = cluster
        self.sessions: dict[str, Session] = {}
        self._fleet = fleet
        self._running: list[Running] = []
        self._reports: queue.Queue[Report] = queue.Queue()
        self._peers_spec = {
            "token": secrets.token_hex(16),
            "ports": random.sample(PORT_RANGE, PORTS_TRIED),
            "peers": [{"name": node.name, "ip": node.private_ip} for node in cluster.nodes],
        }

    def facts(self) -> Iterator[Fact]:
        """Yield each fact once, as soon as every node has reported it or failed."""
        names = {node.name for node in self.cluster.nodes}
        waiting = {name: Fact(name) for name in ALL_FACTS}
        for node in self.cluster.nodes:
            threading.Thread(target=self._ask, args=(node,), daemon=True).start()
        try:
            while waiting:
                node_name, fact_name, value, why = self._reports.get()
                fact = waiting[fact_name]
                if why:
                    fact.missing[node_name] = why
                else:
                    fact.values[node_name] = value
                if names == fact.values.keys() | fact.missing.keys():
                    yield waiting.pop(fact_name)
        finally:
            for running in self._running:
                running.stop()

    def _ask(self, node: Node) -> None:
        """Collect all facts about one node. Runs in a thread per node."""
        pending = Pending(node.name, self._reports)
        try:
            with pending.until_trouble("reach"):
                if is_gone(node):
                    raise SshError(f"{node.name}: {WHY}")
                self.sessions[node.name] = Session(self._fleet, node)
                pending.report("reach", {})
            if session := self.sessions.get(node.name):
                self._ask_reached(session, pending)
            else:
                pending.give_up(UNREACHED)
        finally:
            pending.give_up("the probe did not report it")

    def _ask_reached(self, session: Session, pending: Pending) -> None:
        with pending.until_trouble("clock"):
            pending.report("clock", session.clock())
        with pending.until_trouble(*PEER_FACTS):
            # Both programs at once; the second's output waits in its channel while the first's is read.
            peers = self._start(session, "peers", {**self._peers_spec, "name": session.node.name})
            with pending.until_trouble(*NODE_FACTS):
                spec = {"shared_dir": self.cluster.shared_dir, "memory_gb": session.node.memory_gb}
                pending.hear(self._start(session, "facts", spec))
            pending.hear(peers, last=PEER_FACTS[-1])

    def _start(self, session: Session, program: str, spec: dict[str, Any]) -> Running:
        running = session.run(program, spec, timeout=DEADLINE_S)
        self._running.append(running)
        return running


class Pending:
    """The facts still expected from one node. Each is reported once, with its value or with why it is missing."""

    def __init__(self, node: str, reports: queue.Queue[Report]) -> None:
        self._node = node
        self._reports = reports
        self._facts = list(ALL_FACTS)

    def report(self, fact: str, value: Any, why: str = "") -> None:
        """Report a fact's value, or why it is missing."""
        self._facts.remove(fact)
        self._reports.put((self._node, fact, value, why))

    def hear(self, running: Running, *, last: str = "") -> None:
        """Report a probe's facts. A probe that runs on until it is let go is read only up to the fact `last`."""
        for event in running.events():
            self.report(event["fact"], event["value"])
            if event["fact"] == last:
                return

    @contextmanager
    def until_trouble(self, *facts: str) -> Iterator[None]:
        """Report these facts as missing if the body raises one of TROUBLE."""
        try:
            yield
        except TROUBLE as error:
            self.give_up(" ".join(str(error).split()) or type(error).__name__, facts)

    def give_up(self, why: str, facts: Sequence[str] = ALL_FACTS) -> None:
        """Report those of the facts that are still expected as missing."""
        for fact in [fact for fact in self._facts if fact in facts]:
            self.report(fact, None, why)
