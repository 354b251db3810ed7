"""`fab logs`: what the ranks of a job say and have said."""

from __future__ import annotations

import re

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.jobs.follow import Wanted, follow
from fabfile.jobs.head import Head, state
from fabfile.output import interruptible, next_command, say
from fabfile.ssh import Fleet
from fabfile.targets import load

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@task(
    help={
        "job": "the job's id",
        "rank": "only this rank's lines; - for the launcher's own",
        "since": "only lines of the last 30s, 5m, 2h or 1d",
        "tail": "only the last so many lines",
        "follow": "go on until the job is over",
        "stack": "the stack",
        "inventory": "an inventory file instead of a stack",
    }
)
def logs(
    _c: Context,
    job: str,
    rank: str = "",
    since: str = "",
    tail: int = -1,
    follow: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Show a job's log, each line with its node and rank; --follow stays with it."""
    cluster = load(stack, inventory)
    if rank not in ("", "-") and not rank.isdigit():
        raise Exit(f"--rank {rank}: must be a number, or - for the launcher's own lines", code=2)
    since_seconds = seconds(since)
    with interruptible(), Fleet(cluster) as fleet:
        head = Head(fleet)
        job = state(head, job)["id"]
        last = show(head, Wanted(job, rank, since_seconds, tail, follow))
    say(last)


def show(head: Head, wanted: Wanted) -> str:
    """Print them; the line with the next useful command."""
    now = follow(head, wanted)
    if now["state"] in ("RUNNING", "PENDING"):
        return next_command(f"fab logs {wanted.job} --follow") + f"   (stop: fab stop {wanted.job})"
    return next_command(f"fab fetch {wanted.job}")


def seconds(text: str) -> float:
    """5m -> 300."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if text and not match:
        raise Exit(f"--since {text}: must be a number with s, m, h or d after it, 5m say", code=2)
    return float(int(match[1]) * _SECONDS[match[2]]) if match else 0.0
