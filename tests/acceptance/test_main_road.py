"""The main road on real machines, from `up` to an audit that finds nothing: once over SSH, once with Slurm."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from polling import until
from project import Project

pytestmark = pytest.mark.timeout(900)  # a bake, where nobody has baked yet
JOB = "smoke"
ENDLESS = "train.steps=1000000"
_STEP = re.compile(r"step (\d+)/")


def walk(project: Project, folder: Path) -> None:
    """Take every step of the main road, and see what each says."""
    project.fab("up", "--yes", timeout=900)
    project.fab("wait", timeout=300)
    checked = project.fab("check", timeout=300).stdout
    assert "all-reduce" in checked and not re.search(r"^fail ", checked, re.MULTILINE), checked
    project.fab("prepare", JOB, timeout=300)

    log = folder / "train.log"
    training = project.start("train", JOB, ENDLESS, log=log)
    until(lambda: " step 10/" in log.read_text() or training.poll() is not None, 120, f"step 10 of {JOB}-1")
    project.fab("stop", f"{JOB}-1", timeout=60)
    assert training.wait(60) != 0 and "CANCELLED" in log.read_text(), log.read_text()

    done = max(int(number) for number in _STEP.findall(log.read_text()))
    resumed = project.fab("train", "--resume", f"{JOB}-1", f"train.steps={done + 20}", timeout=180).stdout
    steps = [int(number) for number in _STEP.findall(resumed)]
    assert steps[0] > 1 and steps[-1] == done + 20, resumed
    assert "SUCCEEDED" in resumed

    assert "def " in project.fab("sample", "latest", "--prompt", "def ", "--tokens", "8", timeout=180).stdout
    project.fab("report", "latest", "--out", str(folder / "report.html"))
    assert "<html" in (folder / "report.html").read_text()[:1000]
    (job,) = json.loads(project.fab("jobs", "--json").stdout)
    assert job["state"] == "SUCCEEDED" and len(job["nodes"]) == len(project.inventory()["nodes"])

    project.fab("destroy", "--yes")
    assert "nothing" in project.fab("audit").stdout
    assert project.remaining() == []


def engine() -> str:
    """The real command where it is, as a user would have it."""
    return "pulumi" if shutil.which("pulumi") else "embedded"


class TestOverSsh:
    """A class of its own: pytest-xdist gives each to another worker."""

    def test_the_main_road(self, make_project: Callable[..., Project], tmp_path: Path) -> None:
        project = make_project(engine())
        project.configure(nodes=2)
        walk(project, tmp_path)


class TestWithSlurm:
    """Likewise."""

    def test_the_main_road(self, make_project: Callable[..., Project], tmp_path: Path) -> None:
        project = make_project("embedded")
        project.configure(nodes=2, scheduler="slurm")
        walk(project, tmp_path)
