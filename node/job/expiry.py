"""When a node of the job is about to end: warns in the job's log, and stops the job in time for a checkpoint.

A node ends when its hours are over (see bootstrap/limits.py), or when its cloud takes it back (Spot), reboots or moves
it, and announces that seconds to minutes before (see bootstrap/notice.py). The job does not end the node itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

WARN = 600.0
"""Seconds before a node's end at which the job's log warns of it."""
STOP = 300.0
"""Seconds before a node's end at which the job is stopped with a checkpoint; at once if the notice comes later."""


@dataclass(frozen=True)
class End:
    """When, in seconds on the caller's clock, and why a node will end."""

    node: str
    at: float
    why: str
    by_cloud: bool


class Expiry:
    """The known ends of a job's nodes."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, bool], End] = {}
        self._warned: set[End] = set()
        self.cause: End | None = None
        """The end because of which the job was stopped; None if it was not."""

    def known(self, node: str, at: float, why: str = "") -> None:
        """A node has reported when its hours are over or, with `why`, when its cloud takes it. It replaces what
        it reported before."""
        self._ends[node, bool(why)] = End(node, at, why or "its hours are over", by_cloud=bool(why))

    def withdraw(self, node: str) -> None:
        """A node's cloud has withdrawn its notice."""
        self._ends.pop((node, True), None)

    @property
    def reason(self) -> str:
        """`NODE: why` of the node for which the job was stopped; empty if it was not stopped for one."""
        return f"{self.cause.node}: {self.cause.why}" if self.cause else ""

    def left(self, now: float) -> float:
        """Seconds until the node ends for which the job was stopped; `inf` if it was not, or if that has begun already
        and nobody has said how long it takes."""
        left = self.cause.at - now if self.cause else 0.0
        return left if left > 0 else float("inf")

    def announced(self, seconds: float = float("inf"), now: float = 0.0) -> dict[str, str]:
        """Why their cloud is about to take nodes, by node; only those that it takes in so many seconds."""
        ends = [end for end in self._ends.values() if end.by_cloud and end.at - now < seconds]
        return {end.node: end.why for end in ends}

    @property
    def taken(self) -> set[str]:
        """The nodes that their cloud is about to take; nothing more is started on them."""
        return set(self.announced())

    def asked(self, now: float, say: Callable[[str], None], leaving: Collection[str] = ()) -> str:
        """`stop` if a node is about to end, else empty. Warns once through `say` before that. `leaving`: nodes whose
        ranks leave an elastic job before their cloud takes them, so that it need not stop."""
        ends = [end for end in self._ends.values() if not (end.by_cloud and end.node in leaving)]
        end = min(ends, key=lambda end: end.at, default=None)
        if end is None or end.at - now >= WARN:
            return ""
        if end not in self._warned:
            self._warned.add(end)
            minutes = max(0, round((end.at - now) / 60))
            hours = f"{end.node} ends in {minutes} minutes, as its hours are over"
            what = f"{end.node}: {end.why}" if end.by_cloud else hours
            say(f"warning: {what}; before that the job is stopped with a checkpoint")
        if end.at - now >= STOP:
            return ""
        self.cause = end
        return "stop"
