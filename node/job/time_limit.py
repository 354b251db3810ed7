"""A job's limit of time: it is stopped so long before it that a checkpoint still fits in."""

from __future__ import annotations

_WARNING = 120.0
"""Seconds before the limit at which the job is stopped; of a limit under 8 minutes a quarter."""


class TimeLimit:
    """Counts from the start of the job's supervisor. Times are in seconds of the caller's clock."""

    def __init__(self, seconds: float, now: float) -> None:
        """`seconds`: the limit; 0: none."""
        self._stop_at = now + seconds - min(_WARNING, seconds / 4) if seconds else float("inf")
        self._whose = "its time limit"
        self.reason = ""
        """Set when the job was stopped because of the limit."""

    def asked(self, now: float) -> str:
        """`stop` if the limit is near, else empty."""
        if now < self._stop_at:
            return ""
        self.reason = self._whose
        return "stop"

    def end_now(self) -> None:
        """Slurm's own limit is near, as of its partition, whatever was said at the start."""
        self._whose = "Slurm's time limit"
        self._stop_at = float("-inf")
