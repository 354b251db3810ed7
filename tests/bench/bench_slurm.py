"""Jobs on three local nodes with Slurm: `python tests/bench/bench_slurm.py [--rounds 3]`. Needs root.

    submit    from a job's record to its first step, on nodes that are up; the goal is 10 s
    spare     from the death of one of a job's two nodes to its next step on a spare one; the goal is 20 s

Fails if the median of the rounds is above a goal, which are for an idle machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import local_nodes  # first: it finds the modules of the tests
from jobs_on_nodes import ENDLESS, JOB, Start
from jobs_on_slurm import TEXT, metrics, on_head
from polling import until
from project import Project

from infra.clouds.local import cgroup, nodes

GOALS = {"submit": 10.0, "spare": 20.0}


def submit(project: Project, start: Start) -> float:
    """Seconds until the first step of a job on three nodes."""
    job = start(step=0)
    assert job.ends(120) == 0, job.text()
    return float(metrics(project, job.id)[0]["time"] - job.state()["created"])


def spare(project: Project, start: Start) -> float:
    """Seconds from a worker's death to training again. Slurm's own node does not run the job until then."""
    blocker = on_head(project, "sbatch --parsable --nodelist=node1 --chdir=/tmp --wrap='sleep 900'").strip()
    job = start(ENDLESS, "--nodes", "2", "--restarts", "1", step=8)
    on_head(project, f"scancel {blocker}")
    dead, began = job.state()["nodes"][-1], time.time()
    assert cgroup.kill(nodes.machine(project.stack, dead).group, timeout=10)
    until(lambda: job.state()["attempt"] == 2, 90, "another attempt")
    alive = began + 3  # until then come the steps of ranks that have not noticed
    after = until(lambda: [line for line in metrics(project, job.id) if line["time"] > alive], 90, "it trains again")
    project.fab("stop", job.id, "--now", code=None)
    project.fab("up", "--yes")
    project.fab("wait")
    return float(after[0]["time"] - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    cidr = f"10.{64 + os.getpid() % 190}.8.0/24"
    with local_nodes.ready(3, cidr, scheduler="slurm") as (project, folder):
        (project.root / "job.toml").write_text(JOB.replace('path = "data"', 'path = "/fsx/verbs"'))
        project.fab("prepare", "job.toml", *TEXT, "--yes")
        measures = {"submit": submit, "spare": spare}
        return int(not local_nodes.within_goals(project, folder, asked.rounds, measures, GOALS))


if __name__ == "__main__":
    sys.exit(main())
