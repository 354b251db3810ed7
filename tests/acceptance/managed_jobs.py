"""A managed job that loses a machine for good, and its manager with it, where a scheduler runs the jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs_on_nodes import Start
from on_host import boots
from polling import until
from project import Project

DATA = "data.path=/fsx/smoke"
STEPS = 2000
"""Two minutes of steps on two idle cores: so the job lasts until its machine is there again."""
OPTIONS = [f"train.steps={STEPS}", "checkpoint.every=50", "train.eval_every=0", "train.precision=fp32"]
OPTIONS += ["train.timeout=120", DATA]
PATIENCE = 900.0
"""Seconds for what takes two to four minutes without load."""

RunDir = Callable[[str], Path]
"""A job's directory in the folder that the nodes share, as this machine sees it."""


def check(project: Project, start: Start, logs: Path, run_dir: RunDir, lose: Callable[[str], str]) -> str:
    """The job goes on with the machines that are left although nobody manages it, then, with another manager, on all of
    them, and ends as one that nothing has happened to. `lose`: ends one of a job's machines, not the head, for good,
    and returns its name. Returns the job's id."""
    project.fab("prepare", "smoke", DATA, timeout=300)
    undisturbed = start(*OPTIONS, step=0, file="smoke")
    assert undisturbed.ends(PATIENCE) == 0, undisturbed.text()
    expected = _metrics(run_dir(undisturbed.id))[-1]
    before = boots(project.stack)
    job, lost = _without_manager_and_machine(project, logs / "first", run_dir, lose)
    again = logs / "again"
    manager = _manage(project, again, "--resume", job)
    assert manager.wait(PATIENCE) == 0, again.read_text()

    said, state = again.read_text(), _state(run_dir(job))
    assert f"managed: {lost} replaced" in said and f"managed: {job} SUCCEEDED after 1 replacement" in said, said
    assert state["state"] == "SUCCEEDED" and len(state["nodes"]) == 3, state
    same = {name for name, boot in boots(project.stack).items() if boot == before[name]}
    assert same == before.keys() - {lost}, "the others are as they were"
    log = project.fab("logs", job).stdout
    sizes = re.findall(r"attempt \d+: (\d) ranks on ", log)
    assert sizes[0] == sizes[-1] == "3" and "2" in sizes, log
    assert f"managed: to be replaced: {lost}: " in log and f"managed: {job} goes on on all 3 nodes again" in log, log
    _has_every_step_once(_metrics(run_dir(job)), expected)
    left = [project.home / ".trainyard" / project.stack / "managed", run_dir(job) / "manager.json"]
    assert [path for path in (*left, run_dir(job) / "resize.json") if path.exists()] == []
    return job


def _without_manager_and_machine(
    project: Project, log: Path, run_dir: RunDir, lose: Callable[[str], str]
) -> tuple[str, str]:
    """Start a managed job, and end one of its machines and its manager; returns the job's id and the machine's name,
    when it trains on the two others."""
    manager = _manage(project, log, "smoke", *OPTIONS)
    until(lambda: "step 100/" in log.read_text(), PATIENCE, lambda: f"step 100:\n{log.read_text()}")
    (job,) = re.findall(r"^(\S+-\d+): 3 ranks", log.read_text(), re.M)
    lost = lose(job)
    os.killpg(manager.pid, signal.SIGKILL)
    manager.wait()

    def goes_on() -> bool:
        state = _state(run_dir(job))
        return state["state"] == "RUNNING" and len(state["nodes"]) == 2 and lost not in state["nodes"]

    until(goes_on, PATIENCE, lambda: f"it needs no manager:\n{(run_dir(job) / 'log').read_text()}")
    # On Kubernetes the pod that answers may have been on that machine.
    until(lambda: project.fab("jobs", code=None, timeout=400).returncode == 0, PATIENCE, "the verbs are answered")
    return job, lost


def _has_every_step_once(lines: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """`expected`: the last metrics of the same job, undisturbed."""
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert {len(line["rank_seconds"]) for line in lines} == {2, 3}
    assert lines[-1]["tokens"] == expected["tokens"]
    # Two ranks sum in another order than three, and two thousand steps of fp32 make something of that.
    assert lines[-1]["val_loss"] == pytest.approx(expected["val_loss"], rel=5e-3)


def _manage(project: Project, log: Path, *argv: str) -> subprocess.Popen[str]:
    return project.start("train", *argv, "--managed", "--yes", log=log)


def _state(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "state.json").read_text())
    return found


def _metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
