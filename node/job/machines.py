"""What gives a job its machines: a cluster of its own reached over SSH, Slurm, or Kubernetes.

The supervisor asks only `Machines`. The others are node/slurm/machines.py and node/kubernetes/machines.py.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from infra.inventory import Node
from node.job import files, job_table, new_machine, places
from node.job.aftermath import sweep
from node.job.endings import Ending
from node.job.files import Record
from node.job.keeper_connection import Link, NodeEvent, PipeLink, over_ssh
from node.job.log import Log
from node.job.spec import JobSpec, KeeperSpec

QUEUE_POLL = 0.5

Asked = Callable[[], str]
"""What the user has asked for: "" (nothing), "stop" (with a checkpoint) or "now"."""
Events = queue.SimpleQueue[NodeEvent]


class Machines(Protocol):
    """The machines of one job. Its supervisor uses them in a `with` block."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Those of the next attempt, the supervisor's own first; before `wait` perhaps none but that one."""

    @property
    def own_address(self) -> str:
        """The address at which the job's nodes reach this process."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def is_current(self) -> bool:
        """Whether this supervisor is the one that the record waits for, and the job is not over."""

    def wait(self, asked: Asked, log: Log) -> None:
        """Wait until the machines are there, or the user asks for the job's end."""

    def lost(self, record: Record) -> str:
        """Why an attempt ended that nobody recorded, so that it takes a restart; empty: there was none."""

    def link(self, spec: KeeperSpec, program: str, events: Events) -> Link:
        """Start a keeper on the node of `spec`, with the node program at this path there."""

    def link_again(self, spec: KeeperSpec, program: str, events: Events) -> Link | None:
        """`link` to a node that was lost in this attempt, or to a machine in its place; None: it is not there."""

    def address(self, node: Node) -> str:
        """The address at which the other nodes of the job reach this one now."""

    def left(self, job: str, unknown: Collection[str], *, ending: bool) -> dict[str, list[str]]:
        """Kill what is left of an attempt on nodes that have not said that all is gone; returns by node what could not
        be killed, or why that is not known. `ending`: something has asked this process to end at once."""

    def next(self, nodes: Sequence[Node], unusable: Collection[str], asked: Asked, log: Log) -> tuple[Node, ...] | None:
        """The nodes of the next attempt after one on `nodes`; empty: none can follow; None: it follows elsewhere."""

    def resized(self, without: Collection[str], asked: Asked, log: Log) -> tuple[Node, ...] | None:
        """The nodes of the next attempt: all of the job's that are there but these. As `next`, and no restart."""

    def why(self, node: str, *, has_gone: bool) -> str:
        """Why this node of the attempt is about to go, or `has_gone`, as its owner says it; empty: it says nothing."""

    def asked_to_end(self) -> Ending | None:
        """How the job ends after this process or the ranks have been sent SIGTERM, and nobody has asked us for that;
        PENDING if it goes on in another process. None: nothing is known of it."""

    def why_failed(self) -> str:
        """Why the machines' owner ended an attempt, if it did: that says more than what followed from it."""

    def ended(self, log: Log) -> None:
        """The job is over, or goes on elsewhere: the last thing that the supervisor does."""


class OwnMachines:
    """Nodes that are reached over SSH, and that a job has while no other one of the head's table has them. Before
    `wait` they are all among which the head chooses."""

    def __init__(self, spec: JobSpec, run_dir: Path) -> None:
        self._spec, self._run_dir = spec, run_dir
        self.nodes = self._all = spec.cluster.nodes
        self.own_address = spec.cluster.head.private_ip

    def __enter__(self) -> OwnMachines:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing: systemd then runs `aftermath`."""

    def is_current(self) -> bool:
        return True

    def wait(self, asked: Asked, log: Log) -> None:
        """Wait until no job with a lower number holds the nodes, or so many of them that too few are free."""
        runs, waits_for = self._run_dir.parent, ""
        while self._spec.queue and not asked():
            with job_table.locked(runs):
                taken = places.taken(runs, self._spec, self._spec.id)
                home = places.home(self._spec, files.read(self._run_dir / "state.json"))
                if chosen := places.choose(self._spec, taken, home):
                    job_table.set_state(self._run_dir, **places.given(self._spec, chosen))
                    break
            others = [taken[home]] if home in taken else list(dict.fromkeys(taken.values()))
            before = " or ".join(others) if self._spec.count else others[0]
            if waits_for != before:
                waits_for = before
                log.say(f"waiting for {waits_for}")
            time.sleep(QUEUE_POLL)
        by_name = {node.name: node for node in self._spec.cluster.nodes}
        chosen = files.read(self._run_dir / "state.json")["nodes"] or list(by_name)  # none: stopped while it waits
        self.nodes = self._all = tuple(by_name[name] for name in chosen)

    def lost(self, _record: Record) -> str:
        return ""

    def link(self, spec: KeeperSpec, program: str, events: Events) -> Link:
        return PipeLink(spec, over_ssh(spec.node, spec.id, program), events)

    def link_again(self, spec: KeeperSpec, program: str, events: Events) -> Link:
        """The machine may be a new one, without the job's programs and data: it gets them from this one first."""
        keeper = over_ssh(spec.node, spec.id, program)
        folders = new_machine.folders(self._spec.code, spec.job, self._spec.cluster.shared_dir)
        return PipeLink(spec, new_machine.brought(spec.node, folders, keeper), events)

    def address(self, node: Node) -> str:
        return node.private_ip

    def left(self, job: str, unknown: Collection[str], *, ending: bool) -> dict[str, list[str]]:
        return sweep(job, list(unknown), self._spec.node_program)

    def next(
        self,
        nodes: Sequence[Node],
        unusable: Collection[str],
        asked: Asked,
        log: Log,
    ) -> tuple[Node, ...]:
        """Without the unusable ones; the first must be usable, as rank 0 has the job's files."""
        usable = tuple(node for node in nodes if node.name not in unusable)
        return usable if nodes[0] in usable else ()

    def resized(self, without: Collection[str], asked: Asked, log: Log) -> tuple[Node, ...]:
        return self.next(self._all, without, asked, log)

    def why(self, node: str, *, has_gone: bool) -> str:
        return ""

    def asked_to_end(self) -> None:
        return None

    def why_failed(self) -> str:
        return ""

    def ended(self, log: Log) -> None:
        """Nothing is told to anybody."""
