"""CPU, memory and network that a job's ranks use on their node.

The node's keeper takes the samples; the head appends each to usage.jsonl in the run directory, for `fab report`:

    {"time": unix, "node": "node2", "cpu": 1.97, "memory_gb": 1.4, "net_mb_s": 12.1}

cpu: cores that the ranks kept busy; memory_gb: their resident memory in GiB; net_mb_s: what the whole node sent and
received, in millions of bytes a second, without the loopback.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_HOUR, _DAY = 3600.0, 86400.0


def interval(elapsed: float) -> float:
    """Seconds between samples once a job has run for `elapsed` seconds; it grows, to bound the size of usage.jsonl."""
    return 10.0 if elapsed < _HOUR else 60.0 if elapsed < _DAY else 300.0


class Meter:
    """Measures the use between two calls of `sample`."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._cpu: dict[int, float] = {}
        self._network = self._bytes()
        self._time: float | None = None

    def sample(self, pids: Iterable[int], now: float) -> dict[str, float] | None:
        """What these processes used since the last call, as in usage.jsonl; None on the first call. `now`: seconds of a
        monotonic clock."""
        cpu, memory = {}, 0
        for pid in pids:
            try:
                fields = (self._proc / f"{pid}/stat").read_text().rpartition(")")[2].split()
                memory += int((self._proc / f"{pid}/statm").read_text().split()[1]) * _PAGE
            except (OSError, IndexError):
                continue  # the process has ended
            cpu[pid] = sum(map(int, fields[11:15])) / _TICKS  # utime, stime, cutime, cstime: with its ended children
        network, before, last = self._bytes(), self._cpu, self._time
        used = sum(seconds - before.get(pid, seconds) for pid, seconds in cpu.items())
        moved = network - self._network
        self._cpu, self._network, self._time = cpu, network, now
        if last is None or now <= last:
            return None
        found = {"cpu": used / (now - last), "memory_gb": memory / 2**30, "net_mb_s": moved / (now - last) / 1e6}
        return {name: round(value, 3) for name, value in found.items()}

    def _bytes(self) -> int:
        """Bytes received and sent by all interfaces except the loopback."""
        total = 0
        for line in (self._proc / "net/dev").read_text().splitlines()[2:]:
            name, _, rest = line.partition(":")
            fields = rest.split()
            if name.strip() != "lo" and len(fields) > 8:
                total += int(fields[0]) + int(fields[8])
        return total


def keep(run_dir: Path, node: str, event: Mapping[str, Any]) -> None:
    """Add what a node's keeper has reported to the job's usage.jsonl. On a full disk it is dropped, as the job does not
    depend on it."""
    used = {key: value for key, value in event.items() if key != "event"}
    line = json.dumps({"time": round(time.time(), 3), "node": node, **used})
    with suppress(OSError), (run_dir / "usage.jsonl").open("a") as file:
        file.write(line + "\n")
