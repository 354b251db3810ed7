"""Which nodes of a managed job are of no use any more, and why: by `fab status`' facts, over some time.

Opens no connections and reads no clock: callers pass the time, in seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

PATIENCE = {
    **{"gone": 0.0, "failed": 0.0, "disk": 3.0, "notice": 0.0, "down": 60.0, "not ready": 60.0, "booting": 300.0},
    "out of disk": 360.0,  # its kubelet makes room, and takes the condition back five minutes after that
    "cordoned": math.inf,  # who has done that takes it back, or the machine away
}
"""Seconds that a node may be so before it counts as lost: it may reboot, or its scheduler may notice late."""
SILENT = 90.0
"""The same for one that does not answer, if the job has not lost it."""
CUT_OFF = 15.0
"""The same for one that does not answer, and that the job goes on without."""
_ANSWERS = ("ready", "failed", "booting", "disk", "notice", "down", "cordoned", "out of disk")
_TAKEN = ("takes", "deletes")
"""Words of a cloud's notice that ends a node for good; after a reboot or a move it is there again."""


@dataclass(frozen=True)
class Seen:
    """What is seen of a node now."""

    name: str
    state: str
    """ready, gone, failed, booting, unreachable, unknown; Slurm's down; Kubernetes' not ready, out of disk, cordoned"""
    reason: str = ""
    notice: str = ""  # the cloud's announcement that it ends the node
    disk: str = ""  # why its disk cannot be written; empty: it can

    @property
    def is_well(self) -> bool:
        """Whether a job can have it."""
        return self.state == "ready" and not self.notice and not self.disk

    def trouble(self) -> tuple[str, str]:
        """(what kind, in words) is wrong; both empty: nothing."""
        if self.state != "ready":
            return self.state, self.reason or f"it is {self.state}"
        if self.notice:
            return ("notice" if any(word in self.notice for word in _TAKEN) else "booting"), self.notice
        return ("disk", f"its disk cannot be written: {self.disk}") if self.disk else ("", "")


@dataclass
class Watch:
    """Remembers since when each node is in trouble."""

    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    def lost(self, seen: Sequence[Seen], running_on: Collection[str], now: float) -> Mapping[str, str]:
        """The nodes to replace, each with the reason. `running_on`: the nodes that the job has now. If no node answers,
        it is our own network that fails: then none is lost but those whose machines are gone."""
        troubles = {node.name: node.trouble() for node in seen}
        self._since = {(name, kind): self._since.get((name, kind), now) for name, (kind, _) in troubles.items() if kind}
        some_answer = any(kind in (*_ANSWERS, "") for kind, _ in troubles.values())
        found = {}
        for name, (kind, why) in troubles.items():
            if not kind or (kind not in PATIENCE and not some_answer):
                continue
            silent = CUT_OFF if name not in running_on else SILENT
            if kind == "notice" and name in running_on:
                continue  # the job is about to leave it, with a checkpoint or, an elastic one, without
            if now - self._since[name, kind] >= PATIENCE.get(kind, silent):
                found[name] = why
        return found
