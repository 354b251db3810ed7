"""Jobs that a scheduler runs, stopped or hit, whose losses are those of a job to which nothing happened."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from jobs_on_nodes import Job, Start
from project import Project

Metrics = Callable[[Project, str], list[dict[str, Any]]]
"""A job's lines about its steps."""


def check_resumed(start: Start, job: Job, options: Sequence[str], stopped: str, metrics: Metrics) -> None:
    """Resume a job that was started with these options, for ten steps more. `stopped`: what `fab stop` has printed."""
    step = re.search(r"CANCELLED: stopped: step (\d+) is in the checkpoint", stopped)
    assert step, stopped
    steps = f"train.steps={int(step[1]) + 10}"
    resumed = start("--resume", job.id, steps, step=0)
    assert resumed.ends(180) == 0 and f"going on from step {step[1]}" in resumed.text(), resumed.text()
    undisturbed = start(*options, steps, step=0)
    assert undisturbed.ends(180) == 0, undisturbed.text()
    wanted = [line["loss"] for line in metrics(job.project, undisturbed.id)]
    assert [line["loss"] for line in metrics(job.project, job.id)] == wanted


def check_after_losses(start: Start, lose: Callable[[Job], None], metrics: Metrics) -> None:
    """Start a job, let `lose` take parts of it, each of which it gets again, and wait for its end."""
    options = ["train.steps=3000", "train.min_lr=0.0006", "checkpoint.every=50"]
    job = start(*options, "--restarts", "4")
    lose(job)
    assert job.ends(300) == 0, job.text()
    undisturbed = start(*options, step=0)
    assert undisturbed.ends(300) == 0, undisturbed.text()
    wanted = {line["step"]: line["loss"] for line in metrics(job.project, undisturbed.id)}
    assert {line["step"]: line["loss"] for line in metrics(job.project, job.id)} == wanted
