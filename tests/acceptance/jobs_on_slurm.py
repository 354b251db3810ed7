"""Jobs on nodes with Slurm: a small one to start, and its processes as this machine sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs_on_nodes import JOB
from on_host import Traces, members
from project import Project

from infra.clouds.local.slurm import folder as slurm_folder

NODES = ("node1", "node2", "node3")
TEXT = ["data.source=fabfile/verbs/*.py", "data.train_vocab=300", "data.val_fraction=0.2", "data.path=/fsx/verbs"]


@contextmanager
def slurm_of_three(project: Project) -> Iterator[Project]:
    """Up and ready, with tokens for the small job in the shared folder; nothing is left of it afterwards."""
    project.configure(nodes=3, scheduler="slurm")
    project.fab("up", "--yes", timeout=600)
    project.fab("wait")
    (project.root / "job.toml").write_text(JOB.replace('path = "data"', 'path = "/fsx/verbs"'))
    missing = project.fab("train", "job.toml", code=2)
    assert re.search(r"node1: .*/fsx/verbs", missing.stderr), missing.stderr
    project.fab("prepare", "job.toml", *TEXT, "--yes")
    yield project
    project.fab("destroy", "--yes")
    Traces(project).check_nothing_is_left()


def shared(project: Project) -> Path:
    """The folder that the nodes share, as this machine sees it."""
    return slurm_folder.path(project.stack) / "fsx"


def run_dir(project: Project, job: str) -> Path:
    return shared(project) / "runs" / job


def metrics(project: Project, job: str) -> list[dict[str, Any]]:
    """A job's lines about its steps."""
    return [json.loads(line) for line in (run_dir(project, job) / "metrics.jsonl").read_text().splitlines()]


def parts(project: Project, job: str, *names: str) -> list[int]:
    """Processes of a job on these nodes: what Slurm has started for it, and what these have started."""
    found = []
    for node in names or NODES:
        for pid in members(project.stack, node):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended while we looked
            if f"SLURM_JOB_NAME={job}".encode() in environment or f"TRAINYARD_JOB={job}".encode() in environment:
                found.append(pid)
    return found


def on_head(project: Project, command: str) -> str:
    """What a command on the head prints."""
    lines = project.ssh("node1", command).stdout.splitlines()
    return "\n".join(line.removeprefix("[node1] ") for line in lines)
