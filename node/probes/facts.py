"""The facts of one node: bootstrap record, processor, disks, memory, allocator, and what the launcher needs.

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
from node.job.files import read
from node.memory import meminfo, private
from node.probes import end_with_stdin, say

VENV = Path("/opt/trainyard/venv/bin")
RUNTIME = Path(RUNTIME_FILE)
RECORDS = Path("/var/lib/trainyard")
_GIB = 1 << 30
STEP_S = 15
"""The most seconds that a command started by this probe may take."""


def main(_argv: list[str]) -> None:
    """Print every fact of this node."""
    spec = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_stdin, daemon=True).start()
    say(fact="record", value=record())
    say(fact="cpu", value=cpu())
    say(fact="disk", value={path: disk(path) for path in dict.fromkeys(["/", spec["shared_dir"]]) if path})
    say(fact="memory", value=memory(spec["memory_gb"]))
    say(fact="tcmalloc", value=tcmalloc())
    say(fact="launch", value=launch())


def record() -> dict[str, Any]:
    """The bootstrap's record of this node, with kernel and OS. `state` is ready, failed, none, or broken."""
    found: dict[str, Any] = {"state": "none", "kernel": platform.release(), "os": os_name()}
    for state in ("ready", "failed"):
        path = RECORDS / f"{state}.json"
        if content := read(path):
            found |= {"state": state, "content": content}
        elif path.exists():
            return {**found, "state": "broken", "reason": f"{path} is empty or damaged"}
    return found


def os_name() -> str:
    """The distribution, such as `Debian GNU/Linux 12 (bookworm)`, or `unknown`."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def cpu() -> dict[str, Any]:
    """The model, and whether it has the instructions that make bf16 fast, as the kernel reports them."""
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
    """Space in GiB and the fraction of inodes that are free at a path, or `error`."""
    try:
        usage, inodes = shutil.disk_usage(path), os.statvfs(path)
    except OSError as error:
        return {"error": f"{path}: {error.strerror}"}
    # Some file systems do not count inodes and report 0 of 0.
    free = inodes.f_favail / inodes.f_files if inodes.f_files else 1.0
    writable = path == "/" or os.access(path, os.W_OK)
    return {"free_gb": usage.free / 2**30, "total_gb": usage.total / 2**30, "inodes_free": free, "writable": writable}


def memory(promised: float) -> dict[str, Any]:
    """Total and available memory in GiB. In a container the kernel reports the whole machine's memory, so there the
    total is `promised`, the inventory's figure, and what is in use is the private memory of its processes."""
    info = meminfo()
    total, available = info["MemTotal"] / _GIB, info["MemAvailable"] / _GIB
    if promised and Path("/run/systemd/container").exists():
        total = min(total, promised)
        available = max(0.0, min(available, total - private() / _GIB))
    return {"total_gb": total, "available_gb": available}


def tcmalloc() -> dict[str, Any]:
    """Whether tcmalloc is mapped in a Python process that has a rank's environment, else the reason."""
    if not RUNTIME.exists():
        return {"loaded": False, "reason": f"no {RUNTIME}"}
    python = VENV / "python" if (VENV / "python").exists() else Path(sys.executable)
    code = "print([l.split()[-1] for l in open('/proc/self/maps') if 'tcmalloc' in l][:1])"
    done = in_runtime(f'echo "$LD_PRELOAD"; exec {python} -c "{code}"')
    preload, _, mapped = done.stdout.strip().partition("\n")
    if done.returncode != 0:
        why = done.stderr.strip().rpartition("\n")[2]
        return {"loaded": False, "reason": why or f"exit code {done.returncode}"}
    if "tcmalloc" not in mapped:
        why = f"LD_PRELOAD={preload} is not loaded" if preload else f"{RUNTIME} sets no LD_PRELOAD"
        return {"loaded": False, "reason": why}
    return {"loaded": True, "library": mapped.strip("[]'")}


def launch() -> dict[str, Any]:
    """What this node lacks to start ranks, in `missing`: python, mpirun, torch, systemd-run, sudo."""
    missing = [str(VENV / name) for name in ("python", "mpirun") if not (VENV / name).exists()]
    if not missing:
        find = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
        if in_runtime(f'exec {VENV / "python"} -c "{find}"').returncode != 0:
            missing.append("torch")
    missing += [] if shutil.which("systemd-run") else ["systemd-run"]
    missing += ["sudo without a password"] if shell("sudo -n true").returncode else []
    return {"missing": missing}


def in_runtime(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command in the environment that ranks get."""
    return shell(f"set -a; [ ! -f {RUNTIME} ] || . {RUNTIME}; set +a; {command}")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command. After STEP_S the result is exit code 124 with a message in stderr."""
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": STEP_S}
    try:
        return subprocess.run(["sh", "-c", command], check=False, **options)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer in {STEP_S} s")
