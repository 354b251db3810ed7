"""`fab demo` on Slurm, with a job that takes a minute, and with its own: from `up` to text, and nothing is left."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from project import Project

from infra.clouds.local import orphans

STACK = "demo-slurm"


@pytest.mark.acceptance
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("job", "steps"),
    [("smoke", 20), ("demo", 150)],
    ids=["smoke", "demo"],
)
def test_the_demo_runs_on_slurm_and_leaves_nothing(make_project: Callable[..., Project], job: str, steps: int) -> None:
    if orphans.find(STACK):
        pytest.skip(f"this machine has a stack {STACK}, which is somebody's")
    project = make_project()
    try:
        told = project.fab("demo", "--scheduler", "slurm", "--job", job, timeout=840).stdout
        assert re.search(r"^pass +slurm +3 nodes: 3 idle$", told, re.MULTILINE), told
        assert re.search(r"^pass +munge ", told, re.MULTILINE), told
        assert re.search(r"^(pass|warn) +all-reduce .*all-reduce of \d+ MiB ", told, re.MULTILINE), "started by srun"
        assert re.search(rf"^{job}-1: 3 ranks on 3 nodes, as Slurm's job \d+$", told, re.MULTILINE), told
        assert f"[node1 rank=0] step {steps}/{steps} loss " in told and "\ndef " in told
        assert re.search(r"^ranks in step +3 of 3, all with parameters \w+$", told, re.MULTILINE), told
        assert re.search(r"^bits per byte +\d\.\d+ on files that it never saw \(gzip", told, re.MULTILINE), told
        assert orphans.find(STACK) == []
    finally:
        orphans.sweep(STACK, ())
