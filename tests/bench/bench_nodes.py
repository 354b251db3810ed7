"""Training on the nodes of a local cluster: from one to two, what the network costs, how soon a job is under way.

    python tests/bench/bench_nodes.py [--steps 4] [--rounds 3]

GPT-2 124M, 4x1024 tokens a node and step, nodes of one core each. Two cores of one machine share its memory and its
clock, so beside one node alone the table has two nodes that train at the same time and know nothing of each other:
what two can do at most here. Goals: 95 % of twice one node; at most 5 % of a step waiting for the network; at most 10 s
from `fab train` to the first step, and from `fab train --resume`. Needs root.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "acceptance")]

from jobs_on_nodes import DATA, JOB, folder  # noqa: E402
from project import Project  # noqa: E402

TOKENS = (
    "import array, os, random; os.makedirs('big', exist_ok=True); r = random.Random(1)\n"
    "for name, count in (('train', 400000), ('val', 5000)):\n"
    "    open(f'big/{name}.bin', 'wb').write(array.array('H', [r.randrange(50257) for _ in range(count)]).tobytes())"
)


PRECISION: list[str] = []
"""What the first run has chosen, for the others: its choice is measured, and two at once might choose otherwise."""


def overrides(nodes: int, steps: int) -> list[str]:
    return [
        *PRECISION,
        *("data.path=big", f"train.steps={steps}", f"train.global_batch_tokens={nodes * 4096}", "train.micro_batch=4"),
        *("train.eval_every=0", "train.eval_windows=1", f"checkpoint.every={steps}"),
    ]


def ready(project: Project, nodes: int) -> Project:
    project.configure(nodes=nodes, cpus=1, memoryMb=8192)
    project.fab("up", "--yes", timeout=900)
    project.fab("wait")
    project.fab("run", f'cd && python3 -c "{TOKENS}" && python3 -c "{DATA}"')
    (project.root / "job.toml").write_text(JOB)
    return project


def lines(project: Project, job: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder(project, job, "node1") / "metrics.jsonl").read_text().splitlines()]


def train(project: Project, nodes: int, steps: int) -> list[dict[str, Any]]:
    """The lines of a run on so many nodes, without its first step."""
    argv = ["train", "gpt2-124m-openwebtext", *overrides(nodes, steps), "--nodes", str(nodes)]
    output = project.fab(*argv, timeout=1800).stdout
    if chosen := re.search(r"precision (bf16|fp32)", output):
        PRECISION[:] = [f"train.precision={chosen[1]}"]
    return lines(project, output.partition(":")[0])[1:]


def at_once(projects: list[Project], steps: int) -> float:
    """Tokens per second of clusters of one node each that train at the same time, summed."""
    argv = ["train", "gpt2-124m-openwebtext", *overrides(1, steps), "--nodes", "1"]
    running = [project.start(*argv) for project in projects]
    outputs = [process.communicate()[0] for process in running]
    assert not any(process.returncode for process in running), outputs
    speeds = [lines(project, text.partition(":")[0])[1:-1] for project, text in zip(projects, outputs, strict=True)]
    return sum(best(of) for of in speeds)


def best(of: list[dict[str, Any]]) -> float:
    return max(float(line["tokens_per_s"]) for line in of)


def scaling(one: Project, three: Project, steps: int) -> None:
    alone, two = train(three, 1, steps), train(three, 2, steps)
    bound = at_once([one, three], steps + 1)
    print(f"{'':42} {'tok/s':>8} {'of twice one':>13}", flush=True)
    print(f"{'one node, one core':42} {best(alone):8.0f}")
    print(f"{'two nodes at once, each on its own':42} {bound:8.0f} {bound / 2 / best(alone):13.0%}")
    print(f"{'two nodes together':42} {best(two):8.0f} {best(two) / 2 / best(alone):13.0%}   goal: 95 %")
    print(f"{'  of two that do not talk':42} {'':8} {best(two) / bound:13.0%}")
    waited = statistics.median(
        line["seconds"].get("communication", 0.0) / sum(line["seconds"].values()) for line in two[:-1]
    )
    print(f"{'share of a step that waits for the network':42} {'':8} {waited:13.1%}   goal: 5 %", flush=True)


def first_step(process: subprocess.Popen[str], after: int) -> tuple[float, str]:
    """Seconds from now until a step later than `after` is done, and the job's id."""
    began, job = time.monotonic(), ""
    assert process.stdout
    for line in process.stdout:
        job = job or line.partition(":")[0]
        step = line.partition("rank=0] step ")[2]
        if step and int(step.partition("/")[0]) > after:
            return time.monotonic() - began, job
    raise SystemExit("bench: the job ended before its first step")


def starts(project: Project, rounds: int) -> None:
    started, resumed = [], []
    for _ in range(rounds):
        process = project.start("train", "job.toml", "train.steps=1000000")
        seconds, job = first_step(process, 0)
        started.append(seconds)
        project.fab("stop", job)
        process.communicate()
        step = lines(project, job)[-1]["step"]
        process = project.start("train", "job.toml", "train.steps=1000000", "--resume", job)
        resumed.append(first_step(process, step)[0])
        project.fab("stop", job, "--now")
        process.communicate()
    for what, times in (("fab train", started), ("fab train --resume", resumed)):
        print(f"{what + ' to the first step, 3 nodes':42} {min(times):8.1f} s  (of {rounds}; goal: 10 s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        one = Project(Path(directory) / "one" / "trainyard", "bench-one", "embedded", "10.250.0.0/24")
        three = Project(Path(directory) / "three" / "trainyard", "bench-three", "embedded", "10.251.0.0/24")
        try:
            ready(three, 3)
            starts(three, options.rounds)
            ready(one, 1)
            scaling(one, three, options.steps)
        finally:
            one.clean()
            three.clean()


if __name__ == "__main__":
    main()
