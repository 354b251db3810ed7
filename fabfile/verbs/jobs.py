"""`fab jobs`, `fab logs` and `fab stop`: the jobs of a cluster, the output of their ranks, and their end."""

from __future__ import annotations

import json as json_text
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.base import Backend, JobNode, JobRecord, LogRequest, OtherJob, find_job
from fabfile.command_line import AtLeast
from fabfile.log_display import show
from fabfile.output import duration, next_command, say, table

_HEADING = ["JOB", "STATE", "NODES", "ATTEMPT", "AGE", "TOOK", "COST", "REASON"]
_REASON = 60
_POLL = 0.3
_CHECKPOINT = 150.0
"""Seconds that the trainer has when its job is stopped, at most: train.timeout, 120, and the supervisor's 30 more."""
_TO_END = 90.0
"""Seconds beside these in which a supervisor hears that its job is to stop, ends what is left and records it."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@task
def jobs(_c: Context, stack: str = "", inventory: str = "", json: bool = False) -> None:
    """List the jobs: state, nodes, time, cost."""
    with backends.connect(stack, inventory) as backend:
        every, others = backend.jobs(), backend.other_jobs()
    if json:
        foreign = [{**asdict(job), "id": f"{job.scheduler}:{job.id}"} for job in others]
        say(json_text.dumps([*(asdict(job) for job in every), *foreign], indent=2))
        return
    now = time.time()
    rows = [_HEADING, *(row(job, now) for job in every), *(other_row(job, now) for job in others)]
    numbers = [*(job.slurm for job in every), *(job.id for job in others)]
    if any(numbers):
        column = [others[0].scheduler.upper() if others else "SLURM", *(number or "-" for number in numbers)]
        rows = [[cells[0], number, *cells[1:]] for cells, number in zip(rows, column, strict=True)]
    say(table(rows))
    running = [job.id for job in every if not job.state.is_final]
    say(next_command(f"fab logs {running[-1]} --follow" if running else "fab train JOB.toml"))


def age(job: JobRecord, now: float) -> str:
    """Time since the job's first start; `2d (resumed 5m)` for a resumed one."""
    last = max(0.0, now - job.created)
    if not job.started or job.started >= job.created:
        return duration(last)
    return f"{duration(now - job.started)} (resumed {duration(last)})"


def row(job: JobRecord, now: float) -> list[str]:
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
        _short(job.reason) or "-",
    ]


def other_row(job: OtherJob, now: float) -> list[str]:
    """The line of a job that somebody else submitted."""
    took = duration(now - job.started) if job.started else "-"
    cells = ["-", job.state, str(job.count), "-", duration(now - job.submitted), took, "-"]
    return [*cells, _short(f"submitted by {job.user}: {job.name}")]


def _short(text: str) -> str:
    return text[: _REASON - 1] + "…" if len(text) > _REASON else text


@task(
    help={
        "rank": "only this rank's lines; - for the launcher's own",
        "since": "only lines of the last 30s, 5m, 2h or 1d",
        "tail": "only the last so many lines",
        "follow": "go on until the job is over",
    }
)
def logs(
    _c: Context,
    job: str,
    rank: str = "",
    since: str = "",
    tail: Annotated[int, AtLeast(0)] | None = None,
    follow: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Show a job's log, each line with its node and rank; --follow stays with it."""
    with backends.connect(stack, inventory) as backend:
        if rank not in ("", "-") and not rank.isdigit():
            raise Exit(f"--rank {rank}: must be a number, or - for the launcher's own lines", code=2)
        since_seconds = seconds(since, "--since")
        found = find_job(backend, job)
        check_rank(rank, backend.nodes(), found)
        now = show(backend, LogRequest(found.id, rank, since_seconds, -1 if tail is None else tail, follow))
    running = f"fab logs {now.id} --follow   (stop: fab stop {now.id})"
    say(next_command(f"fab fetch {now.id}" if now.state.is_final else running))


def check_rank(rank: str, nodes: Sequence[JobNode], job: JobRecord) -> None:
    """Exit 2, with the list of the job's ranks, for a rank that it does not have."""
    ranks = sum(node.ranks for node in nodes if node.name in job.nodes)
    if rank.isdigit() and ranks and int(rank) >= ranks:
        there = "only rank 0" if ranks == 1 else f"ranks 0 to {ranks - 1}"
        raise Exit(f"--rank {rank}: {job.id} has {there}, and - for the launcher's own lines", code=2)


def seconds(text: str, option: str) -> float:
    """5m -> 300; 0 for an empty text. Exit 2, naming the option, for another form."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if text and not match:
        raise Exit(f"{option} {text}: must be a number with s, m, h or d after it, 5m say", code=2)
    return float(int(match[1]) * _SECONDS[match[2]]) if match else 0.0


@task(help={"now": "without a checkpoint"})
def stop(_c: Context, job: str, now: bool = False, stack: str = "", inventory: str = "") -> None:
    """Stop a job: after its step and a checkpoint, or --now."""
    with backends.connect(stack, inventory) as backend:
        before = find_job(backend, job)
        if before.state.is_final:
            say(f"{before.id} is {before.state} already")
        else:
            backend.stop(before.id, now=now)
            say(f"{before.id}: asked to stop")
            after = _awaited(backend, before, now=now)
            say(f"{after.id} {after.state}: {after.reason}")
        leftovers = backend.leftovers(before.id)
    for name, what in leftovers.items():
        say(f"{name}: still there: {what}")
    if leftovers:
        raise Exit(next_command("fab status"), code=1)
    say(f"nothing of {before.id} is left on {len(backend.nodes())} nodes")
    verb = "launch" if before.program else "train"
    say(next_command(f"fab {verb} --resume {before.id}   (files: fab fetch {before.id})"))


def _awaited(backend: Backend, job: JobRecord, *, now: bool) -> JobRecord:
    """The record of a job that was asked to stop, when it is over. Exit 1 if its end takes longer than it may: its
    supervisor hangs, or it is still at what comes before its ranks, such as a program's packages."""
    program = backend.begun(job.id).program if job.program else None
    seconds = _TO_END + (0.0 if now else program.grace if program else _CHECKPOINT)
    deadline = time.monotonic() + seconds
    while not (after := find_job(backend, job.id)).state.is_final:
        if time.monotonic() > deadline:
            waited = f"{job.id} is {after.state} {seconds:.0f} s after it was asked to stop"
            how = f"its log: fab logs {job.id} --rank -" if now else f"to end it at once: fab stop {job.id} --now"
            raise Exit(f"{waited}: {how}", code=1)
        time.sleep(_POLL)
    return after
