"""`fab stop`: end a job after a checkpoint, and check every node for processes that it has left."""

from __future__ import annotations

import time

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.base import Backend, Job, find_job
from fabfile.output import next_command, say

_POLL = 0.3


@task(help={"now": "without a checkpoint"})
def stop(_c: Context, job: str, now: bool = False, stack: str = "", inventory: str = "") -> None:
    """Stop a job: after its step and a checkpoint, or --now."""
    with backends.connect(stack, inventory) as backend:
        before = find_job(backend, job)
        if before.state.is_final:
            say(f"{before.id} is {before.state} already")
        else:
            backend.stop(before.id, now=now)
            after = _wait(backend, before.id)
            say(f"{after.id} {after.state}: {after.reason}")
        leftovers = backend.leftovers(before.id)
    for name, what in leftovers.items():
        say(f"{name}: left there: {what}")
    if leftovers:
        raise Exit(next_command("fab status"), code=1)
    say(f"nothing of {before.id} is left on {len(backend.nodes())} nodes")
    say(next_command(f"fab train --resume {before.id}   (files: fab fetch {before.id})"))


def _wait(backend: Backend, job: str) -> Job:
    """The job once it is over."""
    say(f"{job}: asked to stop")
    while True:
        found = find_job(backend, job)
        if found.state.is_final:
            return found
        time.sleep(_POLL)
