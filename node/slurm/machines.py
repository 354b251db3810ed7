"""The machines of a job under Slurm, as its supervisor sees them (node/job/machines.py): those that Slurm has chosen.

The supervisor is the batch script, on the first of them.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from pathlib import Path

from infra.inventory import Node
from node.job import files, submit
from node.job.aftermath import sweep
from node.job.endings import Ending
from node.job.files import Record
from node.job.keeper_connection import Link, PipeLink
from node.job.log import Log
from node.job.machines import Asked, Events
from node.job.spec import JobSpec, KeeperSpec
from node.slurm import continuation, step
from node.slurm.allocation import Allocation


class SlurmMachines:
    """The allocation of this job of Slurm's. Without a node that has died the job goes on in another one."""

    def __init__(self, spec: JobSpec, run_dir: Path) -> None:
        self._spec, self._run_dir = spec, run_dir
        self._slurm = Allocation(spec)
        self.nodes = self._slurm.nodes
        self._dead: set[str] = set()  # nodes of the last attempt that cannot be reached

    @property
    def own_address(self) -> str:
        return self.nodes[0].private_ip

    def __enter__(self) -> SlurmMachines:
        step.signalled_with_slurmstepd(signal.SIGTERM)
        submit.write_secrets(self._spec.id, self._slurm.secrets)
        return self

    def __exit__(self, *_error: object) -> None:
        files.secrets_of(self._spec.id).unlink(missing_ok=True)

    def is_current(self) -> bool:
        return self._slurm.is_current(self._run_dir)

    def wait(self, asked: Asked, log: Log) -> None:
        """Nothing: Slurm has given them already."""

    def lost(self, _record: Record) -> str:
        return "requeued by Slurm" if self._slurm.requeued else ""

    def link(self, spec: KeeperSpec, program: str, events: Events) -> Link:
        return PipeLink(spec, step.on(spec.node, program, ["keep"], stdin=True), events)

    def link_again(self, spec: KeeperSpec, program: str, events: Events) -> Link | None:
        return None

    def address(self, node: Node) -> str:
        return node.private_ip

    def left(self, job: str, unknown: Collection[str], *, ending: bool) -> dict[str, list[str]]:
        # After Slurm has ended this job it runs no step for it any more, and kills what is left by itself.
        asked = [] if ending else list(unknown)
        self._dead = self._slurm.dead(asked)
        remaining = {node: ["not known: it does not answer"] for node in self._dead}
        alive = [node for node in asked if node not in self._dead]
        return remaining | sweep(job, alive, self._spec.node_program, slurms=True)

    def next(self, nodes: Sequence[Node], unusable: Collection[str], asked: Asked, log: Log) -> tuple[Node, ...] | None:
        if not set(unusable) & {node.name for node in nodes}:
            return tuple(nodes)
        continuation.go_on(self._run_dir, self._slurm, log, unusable)
        return None

    def resized(self, without: Collection[str], asked: Asked, log: Log) -> None:
        continuation.go_on(self._run_dir, self._slurm, log, without, counts=False)

    def why(self, node: str, *, has_gone: bool) -> str:
        return ""

    def asked_to_end(self) -> Ending:
        return self._slurm.ended_by()

    def why_failed(self) -> str:
        # Slurm then ends the sruns, which looks as if the nodes were cut off.
        return self._slurm.taken_for_dead()

    def ended(self, log: Log) -> None:
        """Tell Slurm which nodes are dead. Slurm then ends this job of its."""
        if not self._dead:
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        names = ", ".join(sorted(self._dead))
        if why := self._slurm.tell_down(self._dead):
            log.say(f"warning: Slurm was not told that {names} is down: {why}")
