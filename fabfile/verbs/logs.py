"""`fab logs`: the output of a job's ranks, past and live."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.base import Job, JobNode, LogRequest, find_job
from fabfile.command_line import AtLeast
from fabfile.log_display import show
from fabfile.output import next_command, say

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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
        since_seconds = seconds(since)
        found = find_job(backend, job)
        check_rank(rank, backend.nodes(), found)
        now = show(backend, LogRequest(found.id, rank, since_seconds, -1 if tail is None else tail, follow))
    if now.state.is_final:
        say(next_command(f"fab fetch {now.id}"))
    else:
        say(next_command(f"fab logs {now.id} --follow   (stop: fab stop {now.id})"))


def check_rank(rank: str, nodes: Sequence[JobNode], job: Job) -> None:
    """Exit 2, with the list of the job's ranks, for a rank that it does not have."""
    ranks = sum(node.ranks for node in nodes if node.name in job.nodes)
    if rank.isdigit() and ranks and int(rank) >= ranks:
        there = "only rank 0" if ranks == 1 else f"ranks 0 to {ranks - 1}"
        raise Exit(f"--rank {rank}: {job.id} has {there}, and - for the launcher's own lines", code=2)


def seconds(text: str) -> float:
    """5m -> 300; 0 for an empty text."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if text and not match:
        raise Exit(f"--since {text}: must be a number with s, m, h or d after it, 5m say", code=2)
    return float(int(match[1]) * _SECONDS[match[2]]) if match else 0.0
