"""How far a program is: for a user a bar on a terminal, elsewhere a line every few seconds; for the keeper a heartbeat.

heartbeat/rank-N.json has a rank's step, its phase and the time of writing. The node's keeper reads it: an old time
means that the rank hangs, a low step that it is behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TextIO

Phase = Literal["load", "train", "eval", "save", "join"]
BAR = 30  # characters
REDRAW, LINE = 0.2, 5.0  # seconds between two bars, between two lines


class Progress:
    """Counts bytes and prints the progress; safe from several threads."""

    def __init__(
        self, total: int = 0, done: int = 0, out: TextIO | None = None, quiet: bool = False, label: str = "prepare"
    ) -> None:
        self.label = label
        self.text = 0
        self._lock = threading.Lock()
        self.start(total, done)
        self.out = out or sys.stderr
        self.quiet = quiet
        self.bar = self.out.isatty()
        self.began = self.shown = time.monotonic()

    def start(self, total: int, done: int) -> None:
        """`total` and `done` in bytes of the source; a total of 0 is unknown."""
        self.total, self.done, self.first = total, done, done

    def advance(self, cost: int, text: int | None = None) -> None:
        """Add `cost` bytes of source and `text` bytes of text (None: as many); show every REDRAW or LINE seconds."""
        with self._lock:
            self.done += cost
            self.text += cost if text is None else text
            now = time.monotonic()
            if now - self.shown >= (REDRAW if self.bar else LINE):
                self.shown = now
                self.show()

    def show(self) -> None:
        """Print where it is, unless `quiet`: on a terminal over the bar that is there, elsewhere as a new line."""
        if self.quiet:
            return
        line = self.line(time.monotonic() - self.began)
        self.out.write(f"\r{line}\x1b[K" if self.bar else f"{self.label}: {line}\n")
        self.out.flush()

    def finish(self) -> None:
        """Show the final state."""
        self.show()
        if self.bar and not self.quiet:
            self.out.write("\n")

    def line(self, seconds: float) -> str:
        """Share, size of the source, speed (MB of text a second) and time that remains, after `seconds` in all. If the
        total is unknown, what was read, and the speed."""
        speed = f"{self.text / 1e6 / max(seconds, 1e-9):.1f} MB/s"
        if not self.total:
            return f"{self.done / 1e6:.1f} MB  {speed}"
        share = min(1.0, self.done / self.total)
        remaining = (self.total - self.done) * seconds / max(1, self.done - self.first)
        bar = f"[{'#' * int(share * BAR):{BAR}}] " if self.bar else ""
        return f"{share:4.0%} {bar}of {self.total / 1e6:.1f} MB  {speed}  ETA {duration(max(0.0, remaining))}"


def duration(seconds: float) -> str:
    """Seconds in words, such as 45s, 3m07s or 2h05m."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


class Heartbeat:
    """Writes a rank's heartbeat file in the run directory; see the module."""

    def __init__(self, run: Path, rank: int, node: str, world: int = 0) -> None:
        """`world`: of an elastic job's rank, the generation of the world that it is in."""
        self.path = run / "heartbeat" / f"rank-{rank}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self.path.with_suffix(".tmp")
        self._rest = {"rank": rank, "node": node, "pid": os.getpid(), "world": world}

    def beat(self, step: int, phase: Phase) -> None:
        """Write step, phase and time, atomically; not synced, as nobody reads a heartbeat after a machine's crash."""
        self._temporary.write_text(json.dumps({"step": step, "time": time.time(), "phase": phase, **self._rest}))
        self._temporary.replace(self.path)

    @contextlib.contextmanager
    def kept(self, step: int, phase: Phase) -> Iterator[None]:
        """Beat every second from a thread while the block runs, which has no place to do so, such as a compiler."""
        ended = threading.Event()

        def beat_every_second() -> None:
            while not ended.wait(1.0):
                self.beat(step, phase)

        thread = threading.Thread(target=beat_every_second, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
