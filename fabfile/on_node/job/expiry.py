"""A node of the job whose hours will be over: the job is warned of it, and stopped in time for a checkpoint.

The end itself is the node's own affair, see bootstrap/limits.py.
"""

from __future__ import annotations

from collections.abc import Callable

WARN = 600.0
"""Seconds before a node's end at which the job's log says so."""
STOP = 300.0
"""Seconds before it at which the job is stopped, with a checkpoint."""


class Expiry:
    """The nodes' ends, by the clock of whoever asks."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._warned: dict[str, float] = {}

    def told(self, node: str, end: float) -> None:
        """A node has said when it ends. It may say another time later, and is believed."""
        self._ends[node] = end

    def asked(self, now: float, say: Callable[[str], None]) -> str:
        """`stop` when a node is about to end, else empty; says so beforehand, once."""
        if not self._ends:
            return ""
        node, end = min(self._ends.items(), key=lambda item: item[1])
        if end - now < WARN and self._warned.get(node) != end:
            self._warned[node] = end
            left = max(0, round((end - now) / 60))
            say(f"warning: {node} ends in {left} minutes, as its hours are over; before that the job is stopped, saved")
        return "stop" if end - now < STOP else ""
