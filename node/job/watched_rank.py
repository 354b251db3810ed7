"""One rank of a node, as its keeper sees it: its record, its heartbeat and its log, which the rank's wrapper writes."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from node.job import files
from node.job.log_reader import LogReader

STOPPED_SECONDS = 2.0
"""A rank that has been stopped (SIGSTOP, a debugger) for this long is reported."""

Event = dict[str, Any]


class Rank:
    """One rank of this node, as its wrapper's record and its heartbeat describe it."""

    def __init__(self, number: int, path: Path, run_dir: Path) -> None:
        self.number, self.path = number, path
        self._lines = LogReader(path.with_suffix(".log"))
        self._heartbeat = run_dir / "heartbeat" / f"rank-{number}.json"
        self._record: Event = {}
        self._stopped_since: float | None = None
        self._over = False

    def news(self) -> list[Event]:
        """Its new events. Its log lines come first, so that the head has the last one before it hears of the end; but
        for a program that has written so much that the rest of it follows."""
        record = files.read(self.path) or self._record
        events: list[Event] = [
            {"event": "log", "rank": self.number, "time": when, "text": text} for when, text in self._lines.new()
        ]
        if self._over or not record:
            return events
        if record != self._record:
            self._record = record
            self._over = record["state"] == "exited"
            events.append({**record, "event": "rank"})
        elif process_state(record["wrapper"]) == "" and files.read(self.path) == record:
            self._over = True
            events.append({**record, "event": "rank", "state": "lost"})
        elif self._is_stopped():
            events.append({"event": "stopped", "rank": self.number})
        return events

    def step(self) -> Event | None:
        """Its step and its heartbeat's age in seconds by this node's clock; None if it has no heartbeat yet."""
        beat = files.read(self._heartbeat)
        # Another process than its own, or a child of its own wrapper: an earlier attempt's heartbeat.
        if not beat or not {beat["pid"], beat.get("wrapper")} & {self._record.get("pid"), self._record.get("wrapper")}:
            return None
        age = round(time.time() - beat["time"], 2)
        its = {"step": beat["step"], "phase": beat["phase"], "world": beat.get("world", 0)}
        return {"event": "step", "rank": self.number, "age": age, **its}

    @property
    def is_behind(self) -> bool:
        """Whether it has written lines that `news` has not told yet."""
        return self._lines.is_behind

    @property
    def pid(self) -> int | None:
        """Its process id; None before it has started."""
        return self._record.get("pid")

    def term(self) -> None:
        """Ask it to write a checkpoint and end; a user's program is a process group, and all of that is asked."""
        if not self._over and self._record:
            with suppress(ProcessLookupError):
                (os.killpg if self._record.get("group") else os.kill)(self._record["pid"], signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, with the wrapper that would wait before it ends: nobody is to hear of this end."""
        if not self._over and self._record:
            self._over = True
            for pid in (self._record["wrapper"], self._record["pid"]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _is_stopped(self) -> bool:
        """True once, when it has been stopped for STOPPED_SECONDS."""
        if process_state(self._record["pid"]) not in ("T", "t"):
            self._stopped_since = None
            return False
        self._stopped_since = self._stopped_since or time.monotonic()
        if time.monotonic() - self._stopped_since < STOPPED_SECONDS:
            return False
        self._stopped_since = float("inf")
        return True


def process_state(pid: int) -> str:
    """A process's state letter in /proc; empty if it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state in "ZX" else state
