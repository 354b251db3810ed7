"""Each rank's heartbeat: heartbeat/rank-N.json has its step, its phase and the time of writing.

The node's keeper reads it: an old time means that the rank hangs, a low step that it is behind.
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
        """Write step, phase and time, atomically; not synced, as nobody reads a heartbeat after a machine's crash."""
        self._temporary.write_text(json.dumps({"step": step, "time": time.time(), "phase": phase, **self._rest}))
        self._temporary.replace(self.path)
