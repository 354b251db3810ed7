"""`fab jobs`: the jobs of a cluster, the newest last."""

from __future__ import annotations

import json as json_text
import time
from dataclasses import asdict

from invoke.context import Context
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.base import Job
from fabfile.output import duration, next_command, say, table

_HEADING = ["JOB", "STATE", "NODES", "ATTEMPT", "AGE", "TOOK", "COST", "REASON"]
_REASON = 60


@task
def jobs(_c: Context, stack: str = "", inventory: str = "", json: bool = False) -> None:
    """List the jobs: state, nodes, time, cost."""
    with backends.connect(stack, inventory) as backend:
        every = backend.jobs()
    if json:
        say(json_text.dumps([asdict(job) for job in every], indent=2))
        return
    say(table([_HEADING, *(row(job, time.time()) for job in every)]))
    running = [job.id for job in every if not job.state.is_final]
    say(next_command(f"fab logs {running[-1]} --follow" if running else "fab train JOB.toml"))


def age(job: Job, now: float) -> str:
    """Time since the job's first start; `2d (resumed 5m)` for a resumed one."""
    last = max(0.0, now - job.created)
    if not job.started or job.started >= job.created:
        return duration(last)
    return f"{duration(now - job.started)} (resumed {duration(last)})"


def row(job: Job, now: float) -> list[str]:
    """A job's line of the table."""
    seconds = max(0.0, (job.ended or now) - job.started - job.paused) if job.started else 0.0
    return [
        job.id,
        job.state,
        str(len(job.nodes)),
        str(job.attempt),
        age(job, now),
        duration(seconds) if job.started else "-",
        f"${seconds / 3600 * job.price_per_hour:.2f}",
        (job.reason[: _REASON - 1] + "…" if len(job.reason) > _REASON else job.reason) or "-",
    ]
