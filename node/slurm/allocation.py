"""The nodes that Slurm has given to this job, and how the job goes on without those that died. Runs on the first."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from infra.inventory import Node, SshCluster
from node.job import endings, files
from node.job.endings import Ending
from node.job.spec import JobSpec, job_nodes
from node.slurm import queue, records, submission
from node.slurm.queue import SlurmError

_REACH = 1.5
"""Seconds to connect to a node's slurmd. That only the kernel answers, so a busy node does, too."""


class Allocation:
    """This job's allocation, from the environment of its batch script."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self.number = os.environ["SLURM_JOB_ID"]
        self.requeued = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        """How often Slurm has requeued it."""
        self.nodes = nodes_of(spec.cluster, hosts(os.environ["SLURM_JOB_NODELIST"]))
        self._parent = os.getppid()
        self.secrets = submission.taken_secrets(spec)

    @property
    def runs_program(self) -> bool:
        """Whether the job runs a user's program, of whose checkpoints we know nothing."""
        return self._spec.program is not None

    def is_current(self, run_dir: Path) -> bool:
        """Whether this job of Slurm's is the one that the record names, and it is not over. Slurm may requeue one that
        has just ended, or whose place another one has taken."""
        with records.locked(run_dir):  # whoever submitted it is about to write its number
            state = files.read(run_dir / "state.json")
        return state["state"] not in files.OVER and state["slurm"] == self.number

    def dead(self, names: Collection[str]) -> set[str]:
        """Which of these nodes cannot be reached at all. On one that only refuses the connection slurmd is not running,
        as while it restarts."""
        asked = [node for node in self.nodes if node.name in names]
        if not asked:
            return set()
        port = queue.slurmd_port()
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda node: _answers(node.private_ip, port), asked))
        return {node.name for node, answered in zip(asked, answers, strict=True) if not answered}

    def ended_by(self) -> Ending:
        """How the job ends when Slurm has asked this process or the ranks to end: PENDING if it is requeued."""
        if os.getppid() != self._parent:
            return Ending("FAILED", f"slurmstepd, which watched the supervisor on {self.nodes[0].name}, is gone")
        try:
            fate = queue.fate(self.number, self._spec.id)
        except SlurmError as error:
            return Ending("CANCELLED", f"ended by Slurm, which does not say why: {error}")
        if fate is not None and fate.requeued > self.requeued:
            return Ending("PENDING", "requeued by Slurm")
        if fate is not None and fate.reason == "TimeLimit":
            return Ending("FAILED", "Slurm's time limit ended it", endings.SOMEBODY)
        if fate is not None and (why := self._why_down(fate)):
            return Ending("FAILED", why)
        if fate is not None and fate.state == "RUNNING":
            return Ending("CANCELLED", "its processes were sent SIGTERM, and not by Slurm")
        return Ending("CANCELLED", "cancelled in Slurm (scancel)", endings.SOMEBODY)

    def taken_for_dead(self) -> str:
        """Which of our nodes Slurm takes for dead, so that it ends the job; empty if that is not so."""
        try:
            fate = queue.fate(self.number, self._spec.id)
        except SlurmError:
            return ""
        return self._why_down(fate) if fate is not None else ""

    def _why_down(self, fate: queue.Fate) -> str:
        if fate.reason != "NodeDown":
            return ""
        down = []
        with suppress(SlurmError):
            states = queue.nodes(submission.partition(self._spec))
            down = [node.name for node in self.nodes if states.get(node.name, "").startswith("down")]
        return f"Slurm takes {', '.join(down) or 'one of its nodes'} for dead, as its slurmd does not answer"

    def submit_without(self, lost: Collection[str], restarts: int) -> tuple[str, int]:
        """Submit the job again, without these nodes and with so many restarts left: with spare nodes in place of the
        lost ones, or on fewer if there are none. Returns (Slurm's number, how many nodes). SlurmError.

        A new job, not a requeue of this one: Slurm holds a requeued job back until its old credential has expired,
        for up to two minutes, and only an administrator may tell it that a node is dead.
        """
        states, own = queue.nodes(submission.partition(self._spec)), {node.name for node in self.nodes}
        usable = [name for name, state in states.items() if name not in lost and (name in own or queue.is_free(state))]
        count = min(self._spec.node_count, len(usable))
        if not count:
            raise SlurmError("no node is left")
        batch = submission.batch_of(replace(self._spec, restarts=restarts), nodes=count, exclude=sorted(lost))
        return submission.submit(batch, self.secrets), count

    def forbid_requeue(self) -> None:
        """Tell Slurm not to requeue this job of its, as another one has taken its place."""
        with suppress(SlurmError):  # it is over, or an administrator has ruled that out already
            queue.ask(["scontrol", "update", f"jobid={self.number}", "requeue=0"])

    def tell_down(self, dead: Collection[str]) -> str:
        """Tell Slurm that nodes are dead, which it notices by itself only after SlurmdTimeout; this also ends our own
        job. Returns why that failed; empty if it did not."""
        update = ["scontrol", "update", f"nodename={','.join(sorted(dead))}", "state=down"]
        try:
            queue.ask(["sudo", "-n", *update, f"reason=trainyard: no answer to {self._spec.id}"])
        except SlurmError as error:
            return str(error)
        return ""


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=_REACH).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def hosts(text: str) -> list[str]:
    """The names in Slurm's list of nodes, such as node[1-2], in the order of the ranks. SlurmError."""
    return queue.ask(["scontrol", "show", "hostnames", text]).split()


def nodes_of(cluster: SshCluster, names: Sequence[str]) -> tuple[Node, ...]:
    """The inventory's nodes of these names, with the addresses that they have now. A node of a name that the inventory
    does not have is as large as its first."""
    known = {node.name: node for node in job_nodes(cluster)}
    like = job_nodes(cluster)[0]
    found = [known.get(name) or replace(like, name=name, private_ip=name, role="worker") for name in names]
    return tuple(replace(node, private_ip=socket.gethostbyname(node.private_ip)) for node in found)
