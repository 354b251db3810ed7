"""`fab stop`: a checkpoint, then the end of a job; and a look at every node that nothing of it is left."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.backends.ssh.head import Head, runs, state
from fabfile.output import interruptible, next_command, say
from fabfile.remote import node_program
from fabfile.remote.fleet import Fleet
from fabfile.targets import load

OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
_POLL = 0.3
_LOOK = 30


@task(
    help={
        "job": "the job: its id, its number, or latest",
        "now": "without a checkpoint",
        "stack": "the stack",
        "inventory": "an inventory file instead of a stack",
    }
)
def stop(_c: Context, job: str, now: bool = False, stack: str = "", inventory: str = "") -> None:
    """Stop a job: after its step and a checkpoint, or --now."""
    cluster = load(stack, inventory)
    with interruptible(), Fleet(cluster) as fleet:
        head = Head(fleet)
        before = state(head, job)
        job = before["id"]
        if before["state"] in OVER:
            say(f"{job} is {before['state']} already")
        else:
            _ask(head, job, now=now)
            after = _wait(head, job)
            say(f"{job} {after['state']}: {after['reason']}")
        left = look(fleet, job)
    for name, what in left.items():
        say(f"{name}: left there: {what}")
    if left:
        raise Exit(next_command("fab status"), code=1)
    say(f"nothing of {job} is left on {len(cluster.nodes)} nodes")
    say(next_command(f"fab train --resume {job}   (files: fab fetch {job})"))


def _ask(head: Head, job: str, *, now: bool) -> None:
    """Written down on the head, where the job's launcher looks: it is heard also when nobody waits for it here."""
    path = shlex.quote(f"{runs(head.cluster)}/{job}/stop.json")
    text = shlex.quote(json.dumps({"how": "now" if now else "stop"}))
    result = head.run(f"cd && printf %s {text} > {path}.new && mv {path}.new {path}")
    if not result.ok:
        raise Exit(f"{head.node.name}: {result.why}", code=1)


def _wait(head: Head, job: str) -> dict[str, Any]:
    say(f"{job}: asked to stop")
    while True:
        found = state(head, job)
        if found["state"] in OVER:
            return found
        time.sleep(_POLL)


def look(fleet: Fleet, job: str) -> dict[str, str]:
    """What is left of the job, by node, after one more attempt to end it."""
    wrong: dict[str, str] = {}
    for name, result in node_program.run(fleet, "left", job, timeout=_LOOK).items():
        left = json.loads(result.stdout)["left"] if result.ok else [f"not known: {result.why}"]
        if left:
            wrong[name] = "; ".join(left)
    return wrong
