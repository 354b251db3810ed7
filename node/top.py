"""What this node does, and its ranks, as a line of JSON every few seconds, for `fab top`. Ends when stdin does.

    top SECONDS RUNS head|worker LIMITS

LIMITS, the path of the node's limits record, is there as with `status`: see there. The head also says how the jobs
under way are, from their run directories:

    {"cpu": cores busy, "cores": n, "memory_used_gb": ..., "memory_gb": ..., "net_mb_s": ..., "job": id or "",
     "ranks": [{"job", "rank", "node", "cpu", "memory_gb", "step", "phase", "age": seconds since its heartbeat}],
     "jobs": [{"id", "nodes", "steps", "line": the last of metrics.jsonl, "usage": {node: the last of usage.jsonl}}],
     "line": the same of the job of a worker that has its metrics.jsonl}
"""

from __future__ import annotations

import json
import os
import select
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from node import memory, status
from node.job import files, job_table, usage

_LOOK = 5.0  # seconds between two looks at which jobs are under way
_TAIL = 64 << 10  # bytes of a file whose last lines are read
_GIB = 1 << 30


def main(argv: list[str]) -> int:
    """Print a sample every `argv[0]` seconds until stdin ends."""
    seconds, runs, is_head = float(argv[0]), files.absolute(argv[1]), argv[2] == "head"
    sampler = Sampler(runs, is_head=is_head)
    while True:
        print(json.dumps(sampler.sample(time.monotonic())), flush=True)
        if select.select([0], [], [], seconds)[0] and not os.read(0, 1 << 10):
            return 0


class Sampler:
    """Measures between two calls of `sample`."""

    def __init__(self, runs: Path, *, is_head: bool, proc: Path = Path("/proc")) -> None:
        self._runs, self._is_head, self._proc = runs, is_head, proc
        self._shared = Path("/run/systemd/container").exists()
        self._machine = usage.Meter(proc)
        self._busy: tuple[float, float] | None = None
        self._meters: dict[int, usage.Meter] = {}
        self._looked, self._under_way = -_LOOK, list[str]()

    def sample(self, now: float) -> dict[str, Any]:
        """Everything that is known now; what needs two samples is None in the first one. `now`: monotonic seconds."""
        if now - self._looked >= _LOOK:
            self._looked, self._under_way = now, self._running() if self._is_head else []
        own = str((status.job() or {}).get("id", ""))
        jobs = list(dict.fromkeys([*self._under_way, *([own] if own else [])]))
        ranks = [rank for job in jobs for rank in self._ranks(job, now)]
        return {
            **self._use(now),
            "job": own,
            "ranks": ranks,
            "jobs": [self._job(self._runs / job) for job in self._under_way],
            "line": last_metrics(self._runs / own) if own and not self._is_head else {},
        }

    def _running(self) -> list[str]:
        """The jobs under way. Only those whose record says so are looked at closely."""
        there = [path for path in self._runs.iterdir() if path.is_dir()] if self._runs.is_dir() else []
        said = [path for path in sorted(there) if files.read(path / "state.json").get("state") == "RUNNING"]
        return [path.name for path in said if job_table.state_of(path).get("state") == "RUNNING"]

    def _use(self, now: float) -> dict[str, float | None]:
        """What the node itself does. In a container the machine's figures are everybody's: its own processes count."""
        pids = (int(entry.name) for entry in self._proc.glob("[0-9]*")) if self._shared else ()
        used = self._machine.sample(pids, now) or {}
        cpu = used.get("cpu") if self._shared else self._cores_busy(now)
        total = None if self._shared else memory.meminfo()["MemTotal"] / _GIB
        found = {"cpu": cpu, "memory_used_gb": status.memory_used(self._shared) / _GIB, "memory_gb": total}
        cores = None if self._shared else float(os.cpu_count() or 0)
        return {**found, "cores": cores, "net_mb_s": used.get("net_mb_s")}

    def _cores_busy(self, now: float) -> float | None:
        """How many cores were busy since the last call, by /proc/stat."""
        fields = [int(word) for word in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idle and iowait
        before, self._busy = self._busy, (now, busy)
        return None if before is None or now <= before[0] else (busy - before[1]) / (now - before[0])

    def _ranks(self, job: str, now: float) -> Iterator[dict[str, Any]]:
        """The ranks of a job whose records are here; with what they use if they run on this node."""
        run = self._runs / job
        for path in sorted(run.glob("nodes/*/rank-*.json")):
            record = files.read(path)
            pid, rank = record.get("pid"), record.get("rank")
            if record.get("state") != "running" or not isinstance(pid, int) or not isinstance(rank, int):
                continue
            used = self._meter(pid).sample(self._tree(pid), now) if self._is_here(pid, job, path.parent.name) else None
            beat = files.read(run / "heartbeat" / f"rank-{rank}.json")
            is_own = bool({beat.get("pid"), beat.get("wrapper")} & {pid, record.get("wrapper")} - {None})
            yield {
                **{"job": job, "rank": rank, "node": path.parent.name},
                **{name: (used or {}).get(name) for name in ("cpu", "memory_gb")},
                **({"step": beat["step"], "phase": beat["phase"], "age": time.time() - beat["time"]} if is_own else {}),
            }

    def _meter(self, pid: int) -> usage.Meter:
        return self._meters.setdefault(pid, usage.Meter(self._proc))

    def _is_here(self, pid: int, job: str, node: str) -> bool:
        """Whether a process is this node's: the folder of a job may be shared, and has the ranks of all its nodes."""
        with suppress(OSError):
            environment = set((self._proc / f"{pid}/environ").read_bytes().split(b"\0"))
            return {f"TRAINYARD_JOB={job}".encode(), f"TRAINYARD_NODE={node}".encode()} <= environment
        return False

    def _tree(self, pid: int) -> list[int]:
        """A process and its descendants: a rank may be a script that starts others."""
        found = [pid]
        for one in found:
            with suppress(OSError):
                found += map(int, (self._proc / f"{one}/task/{one}/children").read_text().split())
        return found

    def _job(self, run: Path) -> dict[str, Any]:
        """How a job is, from its run directory."""
        last: dict[str, Any] = {}
        for line in tail(run / "usage.jsonl"):
            if isinstance(line.get("node"), str):
                last[line["node"]] = line
        nodes = files.read(run / "state.json").get("nodes") or []
        return {"id": run.name, "nodes": nodes, "steps": steps(run), "line": last_metrics(run), "usage": last}


def last_metrics(run: Path) -> dict[str, Any]:
    """The last record of a run's metrics; empty: there is none here."""
    return next(reversed(list(tail(run / "metrics.jsonl"))), {})


def tail(path: Path) -> Iterable[dict[str, Any]]:
    """The records of a file's last lines, without those that are cut or no records."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL)
            file.seek(start)
            lines = file.read().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return []
    return [record for line in lines[1 if start else 0 :] if (record := files.parsed(line))]


def steps(run: Path) -> int | None:
    """How many steps the trainer is to do; None for a program."""
    try:
        found = tomllib.loads(files.text(run / "job.toml"))["train"]["steps"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None
