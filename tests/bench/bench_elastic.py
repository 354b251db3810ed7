"""How long the steps stop when a rank is lost, and when a node is announced to be taken: in an elastic job, and in one
that starts again from its checkpoint.

    python tests/bench/bench_elastic.py

Three local nodes, the smoke job; in each job the rank of node2 is killed three times. In two others a Spot notice is
written for node3, as bootstrap/notice.py does; the elastic one gets three, each withdrawn. Needs root.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from typing import Any

import local_nodes  # first: it finds the modules of the tests
from jobs_on_nodes import RANK, folder, process
from polling import until
from project import Project

KILLS = 3
GO_ON, JOIN = 10.0, 15.0
"""The most seconds from the loss to the next step, and to the first step with all ranks again."""
SIZE = ["train.steps=100000", "train.decay_steps=1000", "checkpoint.every=50", "train.eval_every=0", "model.dropout=0"]


def main() -> int:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with local_nodes.ready(3, "10.91.8.0/24") as (project, _):
        project.fab("prepare", "smoke", timeout=300)
        return (
            compared(project) + announced(project, "--restarts", "8") + announced(project, "--elastic", notices=KILLS)
        )


def compared(project: Project) -> int:
    """Both jobs; prints their figures. Returns 1 if a bound does not hold."""
    elastic, again = (measured(project, *options) for options in (["--elastic"], ["--restarts", "8"]))
    for name, rows in (("elastic", elastic), ("from its checkpoint", again)):
        steps, whole, lost = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name}: next step {steps:.1f} s, all ranks {whole:.1f} s, {lost:.0f} steps done again", flush=True)
    ratio = statistics.median(row[0] for row in again) / statistics.median(row[0] for row in elastic)
    print(f"an elastic job goes on {ratio:.1f} times as fast")
    return int(max(row[0] for row in elastic) > GO_ON or max(row[1] for row in elastic) > JOIN)


def measured(project: Project, *options: str) -> list[tuple[float, float, int]]:
    """For each kill the seconds to the next step that is new, to one with three ranks, and the steps done again."""
    job, rows = begun(project, *options), []
    for _ in range(KILLS):
        before, began = last(project, job)["step"], time.time()
        os.kill(process(project, "node2", RANK), signal.SIGKILL)
        lines: dict[int, Any] = {}

        def is_new(began: float = began, seen: dict[int, Any] = lines) -> bool:
            line = last(project, job)
            if line and line["time"] > began + 0.5:
                seen.setdefault(line["step"], line)
            return bool(seen)

        until(is_new, 120, "the next step")
        first = min(lines)
        until(partial(is_whole, project, job, began), 120, "steps of all ranks")
        whole = last(project, job)["time"]
        rows.append((lines[first]["time"] - began, whole - began, max(0, before - first + 1)))
        time.sleep(5)
    project.fab("stop", job, "--now")
    return rows


def begun(project: Project, *options: str) -> str:
    """A job that trains."""
    argv = ["fab", "train", "smoke", *SIZE, *options, "--detach"]
    done = subprocess.run(argv, cwd=project.root, env=project.env, capture_output=True, text=True, check=True)
    job = done.stdout.partition(":")[0]
    until(lambda: last(project, job).get("step", 0) > 10, 120, f"steps of {job}")
    return job


def announced(project: Project, *options: str, notices: int = 1) -> int:
    """Print for each notice the seconds to the first step without that node, and the longest pause between two steps.
    Returns 1 if a step was done twice."""
    job = begun(project, *options)
    for number in range(notices):
        began = announce(project, "node3")
        until(lambda: len(last(project, job).get("rank_seconds", "...")) == 2, 120, "steps of two ranks")
        time.sleep(3)
        lines = [line for line in metrics(project, job) if line["time"] > began - 1]
        first = next(line["time"] for line in lines if len(line["rank_seconds"]) == 2) - began
        pause = max(after["time"] - line["time"] for line, after in pairwise(lines))
        print(
            f"{' '.join(options)}: {first:.1f} s after the notice on two nodes, longest pause {pause:.1f} s", flush=True
        )
        project.ssh("node3", "sudo rm /run/trainyard/notice.json")
        if number < notices - 1:
            until(partial(is_whole, project, job, time.time()), 120, "steps of all ranks")
    project.fab("stop", job, "--now")
    steps = [line["step"] for line in metrics(project, job)]
    return int(steps != list(range(1, len(steps) + 1)))


def announce(project: Project, node: str) -> float:
    """Write a notice of two minutes there; returns the Unix time."""
    record = json.dumps({"time": time.time(), "at": time.time() + 120, "why": "EC2 takes this Spot node"})
    there = "sudo mkdir -p /run/trainyard && date +%s.%N"
    done = project.ssh(node, f"{there} && echo '{record}' | sudo tee /run/trainyard/notice.json >/dev/null")
    return float(done.stdout.split()[-1])


def is_whole(project: Project, job: str, began: float) -> bool:
    line = last(project, job)
    return bool(line) and line["time"] > began + 0.5 and len(line["rank_seconds"]) == 3


def last(project: Project, job: str) -> dict[str, Any]:
    """The last line of the job's metrics; empty: there is none yet."""
    return next(reversed(metrics(project, job)), {})


def metrics(project: Project, job: str) -> list[dict[str, Any]]:
    """All lines of the job's metrics but one that is being written."""
    path = folder(project, job, "node1") / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


if __name__ == "__main__":
    sys.exit(main())
