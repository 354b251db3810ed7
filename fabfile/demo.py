"""`fab demo`: the whole story on this machine, in the commands that a user would type."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backend
from fabfile.output import say

STACK = "demo"
STORY = (
    ("three machines on this one, each with its own systemd, sshd and address", ["up", "--yes"]),
    ("follow their boot until all are ready", ["wait"]),
    ("is everything as training needs it?", ["check"]),
    ("a command on all nodes at once", ["run", "hostname"]),
)


@task
def demo(_c: Context) -> None:
    """Stand up a cluster on this machine, check it, use it, and leave nothing behind."""
    began = time.monotonic()
    try:
        for why, argv in STORY:
            _tell(why, argv)
    except BaseException:
        say("\nthe demo did not finish: taking its cluster down")
        _verb(["destroy", "--yes"])
        raise
    _tell("and nothing stays", ["destroy", "--yes"])
    say(f"\nthe demo took {time.monotonic() - began:.0f} s and cost $0.00")
    say("next: fab up   (the same as your own cluster, to keep: stacks/Pulumi.local.yaml)")


def _tell(why: str, argv: list[str]) -> None:
    say(f"\n# {why}\n$ fab {' '.join(argv)} --stack {STACK}")
    code = _verb(argv)
    if code != 0:
        raise Exit(f"the demo stopped: fab {' '.join(argv)} ended with exit code {code}", code=code)


def _verb(argv: list[str]) -> int:
    fab = str(Path(sys.executable).parent / "fab")
    return backend.follow([fab, *argv, "--stack", STACK])
