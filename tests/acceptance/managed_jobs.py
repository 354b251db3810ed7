"""A managed job that loses a machine for good, and its manager with it, where a scheduler runs the jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs_on_nodes import starting
from on_host import boots
from polling import until
from project import Project

DATA = "data.path=/fsx/smoke"
STEPS = 4000
"""Two minutes of steps on two idle cores: so the job lasts until its machine is there again."""
OPTIONS = [f"train.steps={STEPS}", "checkpoint.every=50", "train.eval_every=0", "train.precision=fp32"]
OPTIONS += ["train.timeout=120", DATA]
PATIENCE = 900.0
"""Seconds for what takes two to four minutes without load."""


def undisturbed(project: Project, runs: Path, logs: Path) -> dict[str, Any]:
    """The last metrics of the job without a fault; its data are there then. `runs`: the folder with the jobs'
    directories, as this machine sees it."""
    project.fab("prepare", "smoke", DATA, timeout=300)
    with starting(project, logs) as start:
        job = start(*OPTIONS, step=0, file="smoke")
        assert job.ends(PATIENCE) == 0, job.text()
    return metrics(runs / job.id)[-1]


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@dataclass
class Managed:
    """A managed job that has done a hundred steps, and what writes into `log`: its manager."""

    project: Project
    run_dir: Path
    log: Path
    manager: subprocess.Popen[str]
    boots: dict[str, tuple[int, int]]
    """As its machines were when it began."""

    @classmethod
    def begun(cls, project: Project, runs: Path, log: Path) -> Managed:
        before, manager = boots(project.stack), _manage(project, log, "smoke", *OPTIONS)
        until(lambda: "step 100/" in log.read_text(), PATIENCE, lambda: f"step 100:\n{log.read_text()}")
        (job,) = re.findall(r"^(\S+-\d+): 3 ranks", log.read_text(), re.M)
        return cls(project, runs / job, log, manager, before)

    @property
    def id(self) -> str:
        return self.run_dir.name

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "state.json").read_text())
        return found

    def loses_its_manager(self, lost: str) -> None:
        """It goes on without it, and without the machine that it has just `lost`; then somebody manages it again."""
        os.killpg(self.manager.pid, signal.SIGKILL)
        self.manager.wait()

        def goes_on() -> bool:
            state = self.state
            return state["state"] == "RUNNING" and len(state["nodes"]) == 2 and lost not in state["nodes"]

        until(goes_on, PATIENCE, lambda: f"it needs no manager:\n{(self.run_dir / 'log').read_text()}")
        # On Kubernetes the pod that answers the verbs may have been on that machine.
        until(lambda: self.project.fab("jobs", code=None, timeout=400).returncode == 0, PATIENCE, "verbs are answered")
        self.log = self.log.with_name("again")
        self.manager = _manage(self.project, self.log, "--resume", self.id)

    def ends_as(self, expected: dict[str, Any], lost: str) -> None:
        """On all of its machines, that which it `lost` made again, with each step once and the loss that was to be
        `expected`. Nothing stays of its manager."""
        assert self.manager.wait(PATIENCE) == 0, self.log.read_text()
        said, state, lines = self.log.read_text(), self.state, metrics(self.run_dir)
        assert f"managed: {lost} replaced, with code and data, in " in said, said
        assert f"managed: {self.id} SUCCEEDED after 1 replacement" in said, said
        assert f"step {STEPS}/{STEPS} " in said, "the log is followed to its end"
        assert state["state"] == "SUCCEEDED" and len(state["nodes"]) == 3, state
        same = {name for name, boot in boots(self.project.stack).items() if boot == self.boots[name]}
        assert same == self.boots.keys() - {lost}, "the others are as they were"
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        assert len(lines[-1]["rank_seconds"]) == 3 and lines[-1]["tokens"] == expected["tokens"]
        # Two ranks sum in another order than three, and four thousand steps of fp32 make something of that.
        assert lines[-1]["val_loss"] == pytest.approx(expected["val_loss"], rel=5e-3)
        left = [self.project.home / ".trainyard" / self.project.stack / "managed"]
        left += [self.run_dir / "manager.json", self.run_dir / "resize.json"]
        assert [path for path in left if path.exists()] == []

    def was_moved_back(self, lost: str) -> None:
        """It has trained on two machines, and then on three again; its log has the decisions."""
        log = self.project.fab("logs", self.id).stdout
        sizes = re.findall(r"attempt \d+: (\d) ranks on ", log)
        assert sizes[0] == sizes[-1] == "3" and "2" in sizes, log
        assert {len(line["rank_seconds"]) for line in metrics(self.run_dir)} == {2, 3}
        assert f"managed: to be replaced: {lost}: " in log, log
        assert f"managed: {self.id} goes on on all 3 nodes again, from a checkpoint" in log, log


def _manage(project: Project, log: Path, *argv: str) -> subprocess.Popen[str]:
    return project.start("train", *argv, "--managed", "--yes", log=log)
