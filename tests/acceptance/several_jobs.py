"""Several jobs of one command, where a scheduler runs them: a sweep, and one job on two clusters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jobs_on_nodes import listed, ran_side_by_side
from polling import until
from project import Project
from shared_folder import open_to_all, share

from infra.clouds.local import nodes

RATES = ("1e-3", "3e-3", "1e-2")
ROUNDS = 40
"""So many that a job can be stopped before the last one."""
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
    assert ran_side_by_side(states), states
    report = re.fullmatch(r"next: fab report (.*)", printed.splitlines()[-1])
    assert report and sorted(report[1].split()) == sorted(jobs), printed
    project.fab("report", *report[1].split(), "--out", str(page))
    assert all(job in page.read_text() for job in jobs)
    return [*jobs]


def check_together(project: Project, second: str, shared: Path, folder: Path) -> str:
    """Two models, one after the other, of the cluster with a scheduler and of `second`, a stack without one, which also
    has the job's tokens; the second one stopped and gone on with. `shared` as above; `folder`: for what is written.
    Returns the last job's id on the first cluster."""
    bucket = shared / Path(MEETING).name
    open_to_all(bucket)
    project.fab("run", f"sudo install -d -m 777 {MEETING}", "--stack", second)
    words = ["train", "job.toml", "--with", second, "--exchange", f"file://{MEETING}"]
    short = ["outer.every=4", "outer.overlap=1", "checkpoint.every=4"]
    before = listed(project)
    refused = project.fab(*words, *short, code=2)
    assert f"what {project.stack} has written to file://{MEETING}/job-" in refused.stderr, refused.stderr
    assert listed(project) == before, "nothing was started"
    share(bucket, second, "node1", MEETING)
    printed = project.fab(*words, *short, timeout=600).stdout
    ours, theirs = _jobs(project, second, printed)
    _is_one_model(printed, (project.stack, shared / "runs" / ours), (second, _run_dir(second, theirs)), rounds=3)
    page = folder / "report.html"
    project.fab("report", ours, f"{second}:{theirs}", "--out", str(page))
    assert f"Trained together with {theirs} on {second}: 3 rounds, of which 3 had the most clusters" in page.read_text()
    log = folder / "log"
    fab = project.start(*words, f"train.steps={20 * ROUNDS}", "outer.every=20", "outer.overlap=5", log=log)
    until(lambda: "] round 2 of " in log.read_text(), 300, lambda: f"two rounds:\n{log.read_text()}")
    ours, theirs = _jobs(project, second, log.read_text())
    assert "is in the checkpoint" in project.fab("stop", ours).stdout
    assert "is in the checkpoint" in project.fab("stop", theirs, "--stack", second).stdout
    assert fab.wait(60) == 1, log.read_text()
    again = project.fab("train", "--resume", ours, "--with", second, timeout=900).stdout
    assert f"{ours} SUCCEEDED" in again and f"{theirs} SUCCEEDED" in again, again
    _is_one_model(again, (project.stack, shared / "runs" / ours), (second, _run_dir(second, theirs)), rounds=ROUNDS)
    return ours


def _jobs(project: Project, second: str, printed: str) -> tuple[str, str]:
    """The ids of a job on both clusters, on all nodes that they have."""
    ours = re.search(rf"^{project.stack}: (job-\d+): 3 ranks on 3 nodes$", printed, re.MULTILINE)
    theirs = re.search(rf"^{second}: (job-\d+): 1 rank on 1 node$", printed, re.MULTILINE)
    assert ours and theirs, printed
    return ours[1], theirs[1]


def _is_one_model(printed: str, *clusters: tuple[str, Path], rounds: int) -> None:
    """Each of the clusters, (name, run directory), has done its last round, and has the model that all have."""
    for stack, _ in clusters:
        line = rf"^\[{stack} \S+ rank=0\] round {rounds} of {rounds}: cluster "
        assert re.search(line, printed, re.MULTILINE), printed
    newest = [max((path / "checkpoints").glob("step-*")) for _, path in clusters]
    assert len({path.name for path in newest}) == 1, newest
    assert len({(path / "model.safetensors").read_bytes() for path in newest}) == 1


def _run_dir(stack: str, job: str) -> Path:
    """A job's directory on the one node of a stack without a shared folder."""
    return nodes.machine(stack, "node1").root / "home/trainyard/runs" / job
