"""The nodes that Slurm has given to this job, and how the job goes on without those that died. Runs on the first."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from infra.inventory import Node, SshCluster
from node.job.spec import JobSpec
from node.slurm import queue, submission
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
        self.secrets = submission.taken_secrets()

    def dead(self, names: Collection[str]) -> set[str]:
        """Which of these nodes cannot be reached at all. On one that only refuses the connection slurmd is not running,
        as while it restarts."""
        port = queue.slurmd_port() if names else 0
        return {node.name for node in self.nodes if node.name in names and not _answers(node.private_ip, port)}

    def ended_by(self) -> tuple[str, str]:
        """(state, reason) after Slurm has asked this process to end: PENDING if the job is requeued."""
        if os.getppid() != self._parent:
            return "FAILED", f"slurmstepd, which watched the supervisor on {self.nodes[0].name}, is gone"
        try:
            fate = queue.fate(self.number, self._spec.id)
        except SlurmError as error:
            return "CANCELLED", f"ended by Slurm, which does not say why: {error}"
        if fate is not None and fate.requeued > self.requeued:
            return "PENDING", "requeued by Slurm"
        if fate is not None and fate.reason == "TimeLimit":
            return "FAILED", "Slurm's time limit ended it"
        return "CANCELLED", "cancelled in Slurm (scancel)"

    def goes_on_without(self, lost: Collection[str], restarts: int) -> tuple[str, int]:
        """Submit the job again, without these nodes and with so many restarts left: with spare nodes in place of the
        lost ones, or on fewer if there are none. Returns (Slurm's number, how many nodes). SlurmError.

        A new job, not a requeue of this one: Slurm holds a requeued job back until its old credential has expired,
        for up to two minutes, and only an administrator may tell it that a node is dead.
        """
        states, own = queue.nodes(), {node.name for node in self.nodes}
        usable = [name for name, state in states.items() if name not in lost and (name in own or queue.is_free(state))]
        count = min(self._spec.node_count, len(usable))
        if not count:
            raise SlurmError("no node is left")
        batch = submission.batch_of(replace(self._spec, restarts=restarts), nodes=count, exclude=sorted(lost))
        return submission.submit(batch, self.secrets), count

    def is_not_requeued(self) -> None:
        """Tell Slurm not to requeue this job of its, as another one has taken its place."""
        with suppress(SlurmError):  # it is over, or an administrator has ruled that out already
            queue.ask(["scontrol", "update", f"jobid={self.number}", "requeue=0"])

    def tell_down(self, lost: Sequence[str], why: str) -> str:
        """Tell Slurm that nodes are dead, which it notices by itself only after SlurmdTimeout; this also ends our own
        job. Returns why that failed; empty if it did not."""
        update = ["scontrol", "update", f"nodename={','.join(lost)}", "state=down", f"reason={why}"]
        try:
            queue.ask(["sudo", "-n", *update])
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
    """The inventory's nodes of these names. A node that Slurm has made since the inventory was written is as large as
    the inventory's last one, and is reached by its name."""
    known = {node.name: node for node in cluster.nodes}
    other = cluster.nodes[-1]
    return tuple(known.get(name) or replace(other, name=name, private_ip=name, role="worker") for name in names)
