"""From `fab launch` to the program's first line, on warm nodes with an unchanged directory of 100 MB:
`python tests/bench/bench_launch.py [--nodes 2] [--rounds 5]`. Needs root. The goal is 3 s on an idle machine.

Fails if the median of the rounds is above it.

Prints where the time goes: on this side until the job's record (scan, questions to the nodes), until its supervisor
runs, until the keepers have copied the directory, and until the program's first line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

import local_nodes  # first: it finds the modules of the tests
from project import Project

from infra.clouds.local import nodes

GOAL = 3.0
FILES, BYTES = 500, 200_000
PROGRAM = "import time\nprint('first line', time.time(), flush=True)\n"
PARTS = ("this side", "service", "keepers", "start", "all")


def one(project: Project, work: Path) -> tuple[float, ...]:
    """Launch once; returns the seconds of each of PARTS."""
    began = time.time()
    shown = project.fab("launch", "--workdir", str(work), "--name", "bench", "--", "python", "hello.py").stdout
    job = re.search(r"^(bench-\d+): ", shown, re.MULTILINE)
    assert job, shown
    run = nodes.machine(project.stack, "node1").root / "home/trainyard/runs" / job[1]
    state = json.loads((run / "state.json").read_text())
    log = (run / "log").read_text()
    begun = next(float(line.split()[0]) for line in log.splitlines() if " attempt 1: " in line)
    first = min(float(found) for found in re.findall(r"first line ([\d.]+)", log))
    times = (began, state["created"], state["started"], begun, first)
    return (*(after - before for before, after in itertools.pairwise(times)), first - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    cidr = f"10.{64 + os.getpid() % 190}.7.0/24"
    with local_nodes.ready(asked.nodes, cidr) as (project, folder):
        work = folder / "work"
        (work / "data").mkdir(parents=True)
        (work / "hello.py").write_text(PROGRAM)
        for number in range(FILES):
            (work / f"data/{number}.bin").write_bytes(os.urandom(BYTES))
        one(project, work)  # sends it
        print(f"load {os.getloadavg()[0]:.1f}\n" + "".join(f"{part:>11}" for part in PARTS), flush=True)
        rounds = [one(project, work) for _ in range(asked.rounds)]
        for seconds in sorted(rounds, key=lambda each: each[-1]):
            print("".join(f"{each:11.2f}" for each in seconds), flush=True)
    median = statistics.median(each[-1] for each in rounds)
    print(f"median {median:.2f} s (goal {GOAL:g} s)")
    return int(median > GOAL)


if __name__ == "__main__":
    sys.exit(main())
