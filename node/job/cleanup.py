"""Kills a job's remaining processes on this node and checks that they are gone.

Two independent checks: the job's systemd scope, and the environment of every process, which names the job even if the
process has left the scope. Under Slurm and in a pod of Kubernetes there is no scope: the processes are killed by their
environment. When the job is over Slurm kills its control groups, and a pod's end takes all that it runs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from node.job import files

MARK = "TRAINYARD_JOB"
POD = "TRAINYARD_POD"
_ROUNDS = 20


def main(argv: list[str]) -> int:
    """`sweep ID`: kill the job's processes on this node; print which were found and which could not be killed."""
    job = argv[0]
    found = processes(job)
    kill_job(job)
    files.node_secrets_of(job).unlink(missing_ok=True)
    if not in_pod():
        subprocess.run(["sudo", "-n", "systemctl", "stop", f"{files.unit_of(job)}-keeper.service"], capture_output=True)
    print(json.dumps({"found": found, "alive": wait(job, seconds=5.0)}), flush=True)
    return 0


def kill(unit: str) -> None:
    """Kill every process of a systemd scope. A scope that no longer exists is not an error."""
    kill = ["sudo", "-n", "systemctl", "kill", "--signal=SIGKILL", f"{unit}.scope"]
    subprocess.run(kill, capture_output=True, check=False)


def kill_job(job: str) -> None:
    """Kill every process of a job on this node: those of its scope, and those with its mark, as there is no scope where
    the keeper has started the ranks."""
    if not in_pod():
        kill(files.unit_of(job))
    kill_marked(job)


def under_slurm() -> bool:
    """Whether this program runs in a job of Slurm's, whose ranks are in no scope of systemd's."""
    return "SLURM_JOB_ID" in os.environ


def in_pod() -> bool:
    """Whether this program runs in a pod of Kubernetes, which has no systemd and no sudo."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def kill_marked(job: str) -> None:
    """Kill every process on this node whose environment names the job, and those that they start meanwhile."""
    for _ in range(_ROUNDS):
        found = processes(job)
        for each in found:
            with suppress(ProcessLookupError):
                os.kill(int(each.partition(" ")[0]), signal.SIGKILL)
        if not found:
            return


def wait(job: str, seconds: float) -> list[str]:
    """Wait up to `seconds` until none of the job's processes runs here; returns those that still do."""
    deadline = time.monotonic() + seconds
    while True:
        found = processes(job)
        if not found and (in_pod() or not _is_active(f"{files.unit_of(job)}.scope")):
            return []
        if time.monotonic() > deadline:
            return found or [f"{files.unit_of(job)}.scope"]
        time.sleep(0.05)


def processes(job: str) -> list[str]:
    """`PID command` of every process on this node whose environment names the job."""
    names = {MARK: job}
    if POD in os.environ:  # a process of another pod, on a machine where these can be seen, is not this node's
        names[POD] = os.environ[POD]
    wanted = {f"{name}={value}".encode() for name, value in names.items()}
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(f"{entry.name} {command[:120]}")
    return found


def busy_with(job: str) -> list[str]:
    """Ids of the other jobs that have a scope or a keeper on this node. A pod is its job's own."""
    if in_pod():
        return []
    argv = ["systemctl", "list-units", "--plain", "--no-legend", "--state=active,activating", "trainyard-job-*"]
    units = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"^trainyard-job-(\S+?)(?:\.scope|-keeper\.service)\s", units, re.MULTILINE)) - {job})


def _is_active(unit: str) -> bool:
    return subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0
