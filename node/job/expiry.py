"""A node of the job that is about to end: the job is warned of it, and stopped in time for a checkpoint.

Two things end a node: its hours (see bootstrap/limits.py), and its cloud, which takes a Spot node back, reboots or
moves it, and says so seconds to minutes before (see bootstrap/notice.py). The job does not end the node itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WARN = 600.0
"""Seconds before a node's end at which the job's log says so."""
STOP = 300.0
"""Seconds before it at which the job is stopped, with a checkpoint: at once, where the cloud says it that late."""


@dataclass(frozen=True)
class End:
    """What will end a node."""

    node: str
    at: float
    """On the caller's clock."""
    why: str
    by_cloud: bool


class Expiry:
    """The ends of a job's nodes, as far as they are known."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, bool], End] = {}
        self._warned: set[End] = set()
        self.cause: End | None = None
        """The end that the job was stopped for; None: none."""

    def told(self, node: str, at: float) -> None:
        """A node has said when its hours are over. It may say another time later, and is believed."""
        self._ends[node, False] = End(node, at, "its hours are over", by_cloud=False)

    def noticed(self, node: str, at: float, why: str) -> None:
        """A node's cloud has said when it takes the node."""
        self._ends[node, True] = End(node, at, why, by_cloud=True)

    def withdrawn(self, node: str) -> None:
        """A node's cloud lets it be after all."""
        self._ends.pop((node, True), None)

    @property
    def reason(self) -> str:
        """Because of which node the job was to stop, and why that node ends; empty: not because of one."""
        return f"{self.cause.node}: {self.cause.why}" if self.cause else ""

    @property
    def taken(self) -> set[str]:
        """The nodes that their cloud is about to take: nothing is started on them any more."""
        return {end.node for end in self._ends.values() if end.by_cloud}

    def asked(self, now: float, say: Callable[[str], None]) -> str:
        """`stop` when a node is about to end, else empty. Warns through `say` once before."""
        if not self._ends:
            return ""
        end = min(self._ends.values(), key=lambda end: end.at)
        left = end.at - now
        if left < WARN and end not in self._warned:
            self._warned.add(end)
            when = f"ends in {max(0, round(left / 60))} minutes, as its hours are over"
            what = f"{end.node}: {end.why}" if end.by_cloud else f"{end.node} {when}"
            say(f"warning: {what}; before that the job is stopped with a checkpoint")
        if left >= STOP:
            return ""
        self.cause = end
        return "stop"
