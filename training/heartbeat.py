"""Each rank's sign of life: heartbeat/rank-N.json says which step it is at, since when, and what it is doing there.

A watchdog on the node reads it: an old time names a rank that stopped, a low step one that fell behind.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Literal

Phase = Literal["load", "train", "eval", "save"]


class Heartbeat:
    def __init__(self, run: Path, rank: int, node: str) -> None:
        self.path = run / "heartbeat" / f"rank-{rank}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self.path.with_suffix(".tmp")
        self._rest = {"rank": rank, "node": node, "pid": os.getpid()}

    def beat(self, step: int, phase: Phase) -> None:
        """Renamed into place, so that no reader finds half of one; not synced: it is about the living."""
        self._temporary.write_text(json.dumps({"step": step, "time": time.time(), "phase": phase, **self._rest}))
        self._temporary.replace(self.path)
