"""How long the steps stop when a rank is lost: in an elastic job, and in one that starts again from its checkpoint.

    python tests/bench/bench_elastic.py

Three local nodes, the smoke job; in each job the rank of node2 is killed three times. Needs root.
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
        return compared(project)


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
    argv = ["fab", "train", "smoke", *SIZE, *options, "--detach"]
    done = subprocess.run(argv, cwd=project.root, env=project.env, capture_output=True, text=True, check=True)
    job, rows = done.stdout.partition(":")[0], []
    until(lambda: last(project, job).get("step", 0) > 10, 120, f"steps of {job}")
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


def is_whole(project: Project, job: str, began: float) -> bool:
    line = last(project, job)
    return bool(line) and line["time"] > began + 0.5 and len(line["rank_seconds"]) == 3


def last(project: Project, job: str) -> dict[str, Any]:
    """The last line of the job's metrics; empty: there is none yet."""
    path = folder(project, job, "node1") / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found


if __name__ == "__main__":
    sys.exit(main())
