"""Several jobs of one command, where a scheduler runs them: a sweep, and one job on two clusters."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from jobs_on_nodes import listed
from project import Project
from shared_folder import share

from infra.clouds.local import nodes

RATES = ("1e-3", "3e-3", "1e-2")
MEETING = "/fsx/meet"
"""A folder in the one that the nodes of the first cluster share."""


def check_sweep(project: Project, shared: Path, page: Path) -> list[str]:
    """A job for each value, side by side, a table and a report of all. `shared`: the folder that the nodes share, as
    this machine sees it. Returns the jobs' ids."""
    words = [f"train.lr={','.join(RATES)}", "--each", "--nodes", "1", "train.steps=100", "train.eval_windows=12"]
    printed = project.fab("train", "job.toml", *words, timeout=600).stdout
    assert printed.startswith(f"3 jobs, each on 1 node of {project.stack}\n"), printed
    jobs = dict(re.findall(r"^(job-\d+): train\.lr=(\S+)$", printed, re.MULTILINE))
    assert tuple(jobs.values()) == RATES, printed
    states: list[dict[str, Any]] = [json.loads((shared / "runs" / job / "state.json").read_text()) for job in jobs]
    for (job, rate), state in zip(jobs.items(), states, strict=True):
        (node,) = state["nodes"]
        assert re.search(rf"^\[{job} {node} rank=0\] step 100/100 ", printed, re.MULTILINE), printed
        row = rf"^{job} +{rate} +SUCCEEDED +\d+\.\d{{4}} +\d+\.\d{{4}}( \*)? +\$0\.00$"
        assert re.search(row, printed, re.MULTILINE), printed
    at_once = [
        (one, other)
        for one, other in itertools.combinations(states, 2)
        if one["started"] < other["ended"] and other["started"] < one["ended"]
    ]
    assert at_once and all(one["nodes"] != other["nodes"] for one, other in at_once), states
    report = re.fullmatch(r"next: fab report (.*)", printed.splitlines()[-1])
    assert report and sorted(report[1].split()) == sorted(jobs), printed
    project.fab("report", *report[1].split(), "--out", str(page))
    assert all(job in page.read_text() for job in jobs)
    return [*jobs]


def check_together(project: Project, second: str, shared: Path, page: Path) -> str:
    """One model of the cluster with a scheduler and of `second`, a stack without one, which also has the job's tokens.
    `shared` as above. Returns the id of the first cluster's job."""
    words = ["train", "job.toml", "outer.every=4", "outer.overlap=1", "checkpoint.every=4", "--with", second]
    words += ["--exchange", f"file://{MEETING}"]
    bucket = shared / Path(MEETING).name
    bucket.mkdir()
    bucket.chmod(0o777)
    project.fab("run", f"sudo install -d -m 777 {MEETING}", "--stack", second)
    before = listed(project)
    refused = project.fab(*words, code=2)
    assert f"what {project.stack} has written to file://{MEETING}/job-" in refused.stderr, refused.stderr
    assert listed(project) == before, "nothing was started"
    share(bucket, second, "node1", MEETING)
    done = project.fab(*words, timeout=600).stdout
    found = dict(re.findall(r"^(\S+): (job-\d+): \d ranks? on \d nodes?$", done, re.MULTILINE))
    job, other = found[project.stack], found[second]
    assert f"{project.stack}: {job}: 3 ranks on 3 nodes\n" in done and f"{second}: {other}: 1 rank on 1 node\n" in done
    clusters = (project.stack, shared / "runs" / job), (second, _run_dir(second, other))
    _is_one_model(done, *clusters, step=12)
    project.fab("report", job, f"{second}:{other}", "--out", str(page))
    assert f"Trained together with {other} on {second}: 3 rounds, of which 3 had the most clusters" in page.read_text()
    again = project.fab("train", "--resume", job, "train.steps=16", "--with", second, timeout=600).stdout
    _is_one_model(again, *clusters, step=16)
    return job


def _is_one_model(printed: str, *clusters: tuple[str, Path], step: int) -> None:
    """Each of the clusters has done its last round, and has the model that all have. `clusters`: (name, run
    directory)."""
    last = f"round {step // 4} of {step // 4}: cluster "
    for stack, _ in clusters:
        assert re.search(rf"^\[{stack} \S+ rank=0\] {last}", printed, re.MULTILINE), printed
    models = {(path / f"checkpoints/step-{step:06d}/model.safetensors").read_bytes() for _, path in clusters}
    assert len(models) == 1


def _run_dir(stack: str, job: str) -> Path:
    """A job's directory on the one node of a stack without a shared folder."""
    return nodes.machine(stack, "node1").root / "home/trainyard/runs" / job
