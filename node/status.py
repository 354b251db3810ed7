"""Prints the state of a node as one line of JSON: `status run/trainyard/limits.json [PARTITION]`.

If the node is a container (`shared`), its used memory is read from its cgroup, or summed over its processes if that is
not readable; the load is the whole machine's.
"""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from node import memory
from node.job import files

ROOT = Path(os.environ.get("TRAINYARD_PREFIX") or "/")
STATE = ROOT / "var/lib/trainyard"
BOOTED = ROOT / "run/systemd/inaccessible/reg"  # made by this boot's init before anything else
NEVER = 1e11
GIB = 1 << 30
DISK_BYTES = 1 << 16
"""What a node must still be able to write."""


def main(argv: list[str]) -> None:
    """`argv[0]` is the path of the node's limits record. bootstrap/limits.py does not count a process with this path in
    its command line as use of the node; otherwise a loop of `fab status` would keep an idle cluster alive. `argv[1]`,
    where Slurm starts machines for jobs: their partition."""
    shared = Path("/run/systemd/container").exists()
    ready, failed = record("ready.json"), record("failed.json")
    disk = shutil.disk_usage("/")
    state: dict[str, Any] = {
        "ready": ready,
        "failed": failed,
        "step": last_step(),
        "bare": not (ready or failed) and is_bare(),
        "job": job(),
        "load": os.getloadavg()[0],
        "shared": shared,
        "memory_used_gb": round(memory_used(shared) / GIB, 3),
        "memory_total_gb": None if shared else round(memory.meminfo()["MemTotal"] / GIB, 3),
        "disk_free_gb": round(disk.free / GIB, 1),
        "disk_total_gb": round(disk.total / GIB, 1),
        "disk_error": disk_error(Path.home()),
        "up_seconds": int(up_seconds()),
        "age_seconds": age_seconds(),
        "limits": limits(ROOT / argv[0]),
        "notice": str(files.read(ROOT / "run/trainyard/notice.json").get("why", "")),
    }
    if argv[1:]:
        state["queue_running"] = running(argv[1])
    print(json.dumps(state))


def disk_error(home: Path) -> str:
    """Why nothing can be written where the jobs' files are, such as `No space left on device`; empty: it can."""
    folder = home / "runs" if (home / "runs").is_dir() else home
    file = folder / f".trainyard-disk.{os.getpid()}"
    try:
        file.write_bytes(bytes(DISK_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    return ""


def running(partition: str) -> int | None:
    """How many machines of a partition run, and are billed, those that start or stop included; None: Slurm does not
    say."""
    from node.slurm import queue  # here, as most nodes have no Slurm

    try:
        return sum(not state.endswith("~") for state in queue.nodes(partition).values())
    except queue.SlurmError:
        return None


def record(name: str) -> files.Record | None:
    """A record in STATE that was written during this boot; None if there is none, or it is damaged."""
    return (files.read(STATE / name) or None) if of_this_boot(STATE / name) else None


def job() -> files.Record | None:
    """The job that this node is busy with. A keeper that Slurm has killed has left its record behind."""
    found = record("job.json")
    return found if found and Path(f"/proc/{found.get('keeper', 'self')}").exists() else None


def of_this_boot(path: Path) -> bool:
    """Whether there is such a file, written since this boot began."""
    return path.exists() and (not BOOTED.exists() or path.stat().st_mtime_ns >= BOOTED.stat().st_mtime_ns)


def is_bare() -> bool:
    """Whether no bootstrap is installed or being installed on this node; boot.sh decides, as for `fab wait`."""
    script = pkgutil.get_data("node", "boot.sh")
    return subprocess.run(["bash", "--norc", "-s", "bare"], input=script, check=False).returncode == 0


def age_seconds() -> int | None:
    """Seconds since the node's first boot; None while that is not known."""
    booted = files.read(STATE / "first-boot.json").get("time")
    return None if booted is None else int(time.time() - booted)


def limits(path: Path) -> dict[str, Any] | None:
    """When and why the node ends, in seconds from now by its clock; None if it has no limits."""
    found = files.read(path)
    if not found:
        return None
    return {
        "expires_in_seconds": int(found["deadline"] - time.time()) if found["deadline"] < NEVER else None,
        "idle_minutes": found["idle_minutes"],
        "used_by": found["used"],
        "idle_seconds": 0 if found["used"] else int(time.time() - found["idle_since"]),
        "ends": found["ends"],
        "failed": found.get("failed", ""),
    }


def last_step() -> str:
    """The bootstrap's last step in this boot; empty if there is none yet."""
    path = STATE / "progress.jsonl"
    lines = files.text(path).splitlines() if of_this_boot(path) else []
    return next((str(step["step"]) for line in reversed(lines) if (step := files.parsed(line))), "")


def memory_used(shared: bool) -> float:
    """Bytes in use; if `shared`, by this container only."""
    if not shared:
        info = memory.meminfo()
        return info["MemTotal"] - info["MemAvailable"]
    for folder, usage, cache in (
        ("/sys/fs/cgroup", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        path = Path(folder) / usage
        if os.access(path, os.R_OK):
            stat = dict(line.split() for line in (path.parent / "memory.stat").read_text().splitlines())
            return int(path.read_text()) - int(stat[cache])  # inactive file cache can be freed: not in use
    return memory.private()


def up_seconds() -> float:
    """Seconds since this node's init started; in a container /proc/uptime alone is the machine's."""
    after_name = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
    began = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - began
