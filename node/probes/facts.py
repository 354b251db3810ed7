"""What one node knows of itself: record, processor, disks, memory, allocator, what the launcher needs.

Reads one line of JSON from stdin, `{"shared_dir": "", "memory_gb": 2.0}`, and prints one line of JSON per fact,
`{"fact": name, "value": {...}}`, each as soon as it is known.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from fabfile.launchers import RUNTIME as RUNTIME_FILE
from node.memory import meminfo, private
from node.probes import end_with_stdin, say

VENV = Path("/opt/trainyard/venv/bin")
RUNTIME = Path(RUNTIME_FILE)
RECORDS = Path("/var/lib/trainyard")
_GIB = 1 << 30
STEP_S = 15
"""The longest that any one program started here may take."""


def main(_argv: list[str]) -> None:
    """Print every fact of this node."""
    spec = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_stdin, daemon=True).start()
    say("record", record())
    say("cpu", cpu())
    say("disk", {path: disk(path) for path in dict.fromkeys(["/", spec["shared_dir"]]) if path})
    say("memory", memory(spec["memory_gb"]))
    say("tcmalloc", tcmalloc())
    say("launch", launch())


def record() -> dict[str, Any]:
    """The bootstrap's record of this node; without one, only what any machine can tell."""
    found: dict[str, Any] = {"state": "none", "kernel": platform.release(), "os": os_name()}
    for state in ("ready", "failed"):
        try:
            content = json.loads((RECORDS / f"{state}.json").read_text())
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue
        except json.JSONDecodeError as error:
            return {**found, "state": "broken", "reason": f"{RECORDS}/{state}.json: {error}"}
        found |= {"state": state, "content": content}
    return found


def os_name() -> str:
    """Such as `Debian GNU/Linux 12 (bookworm)`."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def cpu() -> dict[str, Any]:
    """Model and the flags that make bf16 fast, from the kernel and not from a library's guess."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "model": fields.get("model name", platform.machine()),
        "amx_bf16": "amx_bf16" in flags,
        "avx512_bf16": "avx512_bf16" in flags,
        "bf16": bool(flags & {"amx_bf16", "avx512_bf16", "bf16"}),
    }


def disk(path: str) -> dict[str, Any]:
    """Space in GiB and the share of free inodes at a path, or the error."""
    try:
        usage, inodes = shutil.disk_usage(path), os.statvfs(path)
    except OSError as error:
        return {"error": f"{path}: {error.strerror}"}
    # Some file systems count no inodes and say 0 of 0.
    free = inodes.f_favail / inodes.f_files if inodes.f_files else 1.0
    writable = path == "/" or os.access(path, os.W_OK)
    return {"free_gb": usage.free / 2**30, "total_gb": usage.total / 2**30, "inodes_free": free, "writable": writable}


def memory(promised: float) -> dict[str, Any]:
    """In GiB. In a container the kernel shows the machine's memory: there the inventory's figure is the limit, and its
    own processes' private memory is what is in use."""
    info = meminfo()
    total, available = info["MemTotal"] / _GIB, info["MemAvailable"] / _GIB
    if promised and Path("/run/systemd/container").exists():
        total = min(total, promised)
        available = min(available, total - private() / _GIB)
    return {"total_gb": total, "available_gb": available}


def tcmalloc() -> dict[str, Any]:
    """Start a process the way a rank is started and look at what is really mapped in it."""
    if not RUNTIME.exists():
        return {"loaded": False, "reason": f"no {RUNTIME}"}
    python = VENV / "python" if (VENV / "python").exists() else Path(sys.executable)
    code = "print([l.split()[-1] for l in open('/proc/self/maps') if 'tcmalloc' in l][:1])"
    done = in_runtime(f'echo "$LD_PRELOAD"; exec {python} -c "{code}"')
    preload, _, mapped = done.stdout.strip().partition("\n")
    if done.returncode != 0:
        return {"loaded": False, "reason": last_line(done.stderr) or f"exit code {done.returncode}"}
    if "tcmalloc" not in mapped:
        why = f"LD_PRELOAD={preload} is not loaded" if preload else f"{RUNTIME} sets no LD_PRELOAD"
        return {"loaded": False, "reason": why}
    return {"loaded": True, "library": mapped.strip("[]'")}


def launch() -> dict[str, Any]:
    """What is missing for mpirun and torch here; empty when all is there."""
    missing = [str(VENV / name) for name in ("python", "mpirun") if not (VENV / name).exists()]
    if not missing:
        find = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
        if in_runtime(f'exec {VENV / "python"} -c "{find}"').returncode != 0:
            missing.append("torch")
    if not shutil.which("systemd-run"):
        missing.append("systemd-run")
    if shell("sudo -n true").returncode != 0:
        missing.append("sudo without a password")
    return {"missing": missing}


def in_runtime(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command in the environment that ranks get."""
    return shell(f"set -a; [ ! -f {RUNTIME} ] || . {RUNTIME}; set +a; {command}")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command, for STEP_S at most."""
    try:
        return subprocess.run(
            ["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STEP_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer in {STEP_S} s")


def last_line(text: str) -> str:
    """The last line of a text."""
    return text.strip().rpartition("\n")[2]
