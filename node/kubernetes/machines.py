"""The machines of a job on Kubernetes, as its supervisor sees them (node/job/machines.py): those of its pods.

The supervisor is in the job's first pod. Pods come, go and come again elsewhere; an attempt has those that are
connected when it begins.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from infra.inventory import Node
from node.job import files
from node.job.files import Record
from node.job.keeper_connection import Link
from node.job.log import Log
from node.job.machines import Asked, Events
from node.job.spec import JobSpec, KeeperSpec, job_nodes
from node.kubernetes.api import Api
from node.kubernetes.connections import Connection, Listener
from node.kubernetes.dead_machines import DeadMachines
from node.kubernetes.identity import Address, Pod
from node.kubernetes.pod_endings import PodEndings
from node.kubernetes.unplaced import Unplaced

REJOIN = 25.0
"""Seconds after an attempt for all pods of the job to be there again; then it goes on with those that are."""
_POLL = 0.1
_QUIET = 3.0
"""Seconds of waiting after which the job's log says so."""
_SAID = 4.0
"""Seconds for Kubernetes to say why a pod has ended."""
_TELL = 0.5
"""Seconds between the word to the pods that the job is over, and the end of this one, which has the connections."""


class PodMachines:
    """The pods of this job, the supervisor's own first."""

    def __init__(self, spec: JobSpec, run_dir: Path) -> None:
        self._spec, self._run_dir, self._own = spec, run_dir, Pod.own()
        self.nodes: tuple[Node, ...] = (self._node(self._own, ""),)
        self._pods: dict[str, Connection] = {}
        """By the name of its node: the pods of the next attempt."""
        self._say: Callable[[str], None] = print
        """Writes into the job's log, once there is one."""
        self._listener: Listener | None = None
        self._pod_endings: PodEndings | None = None
        self._before: Address | None = None
        """Where the supervisor before this one has listened."""
        self._hurry = files.read(run_dir / "state.json").get("state") == "RUNNING"
        """Whether an attempt was made before: it then goes on with the pods that are there after REJOIN."""

    @property
    def own_address(self) -> str:
        return self.nodes[0].private_ip

    def __enter__(self) -> PodMachines:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing: the pods are told by `ended`."""

    def is_current(self) -> bool:
        return files.read(self._run_dir / "state.json").get("state") not in files.OVER

    def wait(self, asked: Asked, log: Log) -> None:
        """Listen, and wait for the job's pods: for all of them, however long, or, if the job goes on after its first
        pod was lost, for those that come in time."""
        self._say = log.say
        self._pod_endings = PodEndings(Api(), self._run_dir, log.say)
        self._before = Address.read(self._run_dir)
        self._listener = Listener(self._own, self._spec.node_count, log.say)
        self._listener.address.write(self._run_dir)
        threading.Thread(target=self._end_with_successor, args=(log,), daemon=True).start()
        dead = DeadMachines(Api(), self._spec.id, self._own, log.say)

        def missing() -> list[int]:
            there = self._there()
            dead.know(each.pod for each in there)
            return sorted(set(range(self._spec.node_count)) - {each.pod.index for each in there})

        dead.watch(missing)
        self._gather(asked, log, REJOIN if self._hurry else inf)

    def lost(self, record: Record) -> str:
        if record["state"] != "RUNNING":
            return ""
        before = self._before.pod if self._before else None
        why = self._pod_endings.why(before) if before and self._pod_endings else ""
        return f"its first pod{f', on {before.machine} (rank 0),' if before else ''} was lost{': ' if why else ''}{why}"

    def link(self, spec: KeeperSpec, program: str, events: Events) -> Link:
        connection = self._pods[spec.node]
        connection.keep(spec, events)
        return connection

    def link_again(self, spec: KeeperSpec, program: str, events: Events) -> Link | None:
        """To the pod that Kubernetes has made in place of this node's, wherever, or that has connected again. The node
        keeps its name for the rest of the attempt: the job's record and its ranks' places go by that."""
        before = self._pods[spec.node]
        is_its = [each for each in self._there() if each is not before and each.pod.index == before.pod.index]
        if not is_its:
            return None
        found = is_its[0]
        if found.pod.machine != before.pod.machine:
            self._say(f"{spec.node}: its pod is on {found.pod.machine} now; the job keeps the name")
        self._pods[spec.node] = found
        found.keep(spec, events)
        return found

    def address(self, node: Node) -> str:
        return self._pods[node.name].pod.ip

    def left(self, job: str, unknown: Collection[str], *, ending: bool) -> dict[str, list[str]]:
        """Nothing: a pod's agent kills what is left before it connects again, and a pod's end takes all with it."""
        return {}

    def next(self, nodes: Sequence[Node], unusable: Collection[str], asked: Asked, log: Log) -> tuple[Node, ...]:
        """Those of the pods that are there again; none, if that is not so of our own."""
        self._gather(asked, log, REJOIN)
        if self.nodes and len(self.nodes) < self._spec.node_count and not asked():
            lost = [node.name for node in nodes if node.name not in self._pods]
            without = f", without {', '.join(lost)}" if lost else ""
            log.say(f"{len(self.nodes)} of {self._spec.node_count} pods are there{without}")
        return self.nodes

    def resized(self, without: Collection[str], asked: Asked, log: Log) -> tuple[Node, ...]:
        return self.next(self.nodes, without, asked, log)

    def why(self, node: str, *, has_gone: bool) -> str:
        connection = self._pods.get(node)
        if connection is None or self._pod_endings is None:
            return ""
        return self._pod_endings.why(connection.pod, _SAID if has_gone and connection.was_closed else 0.0)

    def asked_to_end(self) -> None:
        return None

    def why_failed(self) -> str:
        return ""

    def ended(self, log: Log) -> None:
        """Tell the pods that the job is over."""
        if self._listener is not None:
            Address.forget(self._run_dir)  # it has the token, and the job's files may be fetched
            self._listener.close()
            time.sleep(_TELL)

    def _there(self) -> list[Connection]:
        return self._listener.there() if self._listener is not None else []

    def _gather(self, asked: Asked, log: Log, seconds: float) -> None:
        """Wait until all pods are there, for so long, or until the user asks for something; set those of the attempt.
        With a limit those that find no machine are not waited for."""
        began, said, unplaced = time.monotonic(), 0, Unplaced(Api(), self._spec.id)
        while len(there := self._there()) < self._spec.node_count and not asked():
            waited = time.monotonic() - began
            missing = set(range(self._spec.node_count)) - {each.pod.index for each in there}
            if 0 not in missing and (waited > seconds or (seconds < inf and unplaced.have_no_machine(missing))):
                break
            if waited > _QUIET and len(there) != said:
                said = len(there)
                log.say(f"waiting for the job's pods: {said} of {self._spec.node_count} are there")
            time.sleep(_POLL)
        machines = Counter(each.pod.machine for each in there)
        self._pods = {each.pod.machine if machines[each.pod.machine] == 1 else each.pod.name: each for each in there}
        found = tuple(self._node(each.pod, name) for name, each in self._pods.items())
        self.nodes = found if there and there[0].pod.index == 0 else ()

    def _node(self, pod: Pod, name: str) -> Node:
        """A pod as a node: as large as each of the cluster's workers."""
        like = job_nodes(self._spec.cluster)[0]
        node = replace(like, name=name or pod.machine, private_ip=pod.ip, ssh_host="")
        return node if pod.index else replace(node, role="head")

    def _end_with_successor(self, log: Log) -> None:
        """End this process when another supervisor listens for the job: this one was taken for dead, as when its
        machine was cut off, and the operator has made a pod in its place."""
        assert self._listener is not None
        own = self._listener.address.token
        while True:
            time.sleep(1.0)
            try:
                found = Address.read(self._run_dir)
            except OSError:
                continue  # the shared volume does not answer for a moment
            if found is not None and found.token != own:
                log.say("another supervisor has taken this job over: this one ends")
                os._exit(128 + signal.SIGTERM)
