"""Jobs on three local nodes with Kubernetes: `python tests/bench/bench_kubernetes.py [--rounds 3]`. Needs root, and
Kubernetes' programs, which an `up` of such a stack has made.

    submit    from a job's record to its first step, on three machines that are up; the goal is 12 s
    pod       from the end of all processes of a job's second pod to its next step; the goal is 20 s
    machine   from the end of the machine of one of its pods to its next step on the other two; the goal is 60 s

Fails if the median of the rounds is above a goal, which are for an idle machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import local_nodes  # first: it finds the modules of the tests
from jobs_on_kubernetes import kill_machine, machine_of, metrics, state, why_not
from jobs_on_nodes import ENDLESS, JOB, Job, Start
from jobs_on_slurm import TEXT
from on_host import members
from polling import until
from project import Project

GOALS = {"submit": 12.0, "pod": 20.0, "machine": 60.0}


def submit(project: Project, start: Start) -> float:
    """Seconds until the first step of a job on three machines."""
    job = start(step=0)
    assert job.ends(120) == 0, job.text()
    return float(metrics(project, job.id)[0]["time"] - state(project, job.id)["created"])


def pod(project: Project, start: Start) -> float:
    """Seconds from the death of a pod's processes to training again."""
    job = start(ENDLESS, step=8)
    name, began = f"{job.id}-worker-0", time.time()
    for pid in members(project.stack, machine_of(project, name)):
        if "/launch pod " in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode():
            os.kill(pid, signal.SIGKILL)
    return trains_again(project, job, began)


def machine(project: Project, start: Start) -> float:
    """Seconds from the death of a machine that has neither the control plane nor the first pod to training again."""
    job = start(ENDLESS, "checkpoint.every=20", step=30)
    machines = [machine_of(project, f"{job.id}-worker-{number}") for number in range(2)]
    dead, began = next(name for name in machines if name != "node1"), time.time()
    kill_machine(project, dead)
    seconds = trains_again(project, job, began)
    project.fab("up", "--yes", timeout=300)
    project.fab("wait")
    return seconds


def trains_again(project: Project, job: Job, began: float) -> float:
    """Seconds from `began`, Unix time, to a step of the second attempt. The job is stopped."""
    until(lambda: state(project, job.id)["attempt"] == 2, 180, "another attempt")
    alive = began + 3  # until then come the steps of ranks that have not noticed
    after = until(lambda: [line for line in metrics(project, job.id) if line["time"] > alive], 90, "it trains again")
    until(lambda: project.fab("stop", job.id, "--now", code=None).returncode == 0, 120, "it is stopped")
    return float(after[0]["time"] - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    cidr = f"10.{64 + os.getpid() % 190}.9.0/24"
    with local_nodes.ready(3, cidr, scheduler="kubernetes", memoryMb=3072) as (project, folder):
        (project.root / "job.toml").write_text(JOB.replace('path = "data"', 'path = "/fsx/verbs"'))
        project.fab("prepare", "job.toml", *TEXT, "--yes")
        measures = {"submit": submit, "pod": pod, "machine": machine}
        return int(not local_nodes.within_goals(project, folder, asked.rounds, measures, GOALS))


if __name__ == "__main__":
    sys.exit(main())
