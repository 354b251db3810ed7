"""`fab sample`: text from a job's model, as the head makes it."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import paramiko
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.backends.ssh.head import Head, runs, state
from fabfile.command_line import AtLeast
from fabfile.launchers import RUNTIME, VENV
from fabfile.output import interruptible, write
from fabfile.remote.command import Result
from fabfile.remote.fleet import Fleet
from fabfile.targets import load


@task(
    help={
        "job": "the job: its id, its number, or latest",
        "prompt": "what the text begins with",
        "tokens": "how many to make",
        "temperature": "0: the likeliest each time",
        "top-k": "choose among so many; 0: all",
        "seed": "of the choice",
        "stack": "the stack",
        "inventory": "an inventory file instead of a stack",
    }
)
def sample(
    _c: Context,
    job: str,
    prompt: str = "\n",
    tokens: Annotated[int, AtLeast(1)] = 100,
    temperature: Annotated[float, AtLeast(0)] = 0.8,
    top_k: Annotated[int, AtLeast(0)] = 200,
    seed: Annotated[int, AtLeast(0)] = 1337,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Sample text from a job's best or newest model, token by token."""
    cluster = load(stack, inventory)
    options = {
        "prompt": prompt,
        "tokens": tokens,
        "temperature": temperature,
        "top-k": top_k,
        "seed": seed,
    }
    with interruptible(), Fleet(cluster) as fleet:
        head = Head(fleet)
        job = state(head, job)["id"]
        words = [f"--{name}={value}" for name, value in options.items()]
        program = shlex.join([f"{VENV}/python", "-m", "training.sample", f"{runs(cluster)}/{job}", *words])
        threads = max(node.cores_per_slot for node in cluster.nodes[:1])
        environment = f"PYTHONPATH={head.folder} OMP_NUM_THREADS={threads} PYTHONIOENCODING=utf-8"
        code = _show(head, f"set -a; . {RUNTIME}; {environment}; set +a; exec {program}")
    if code != 0:
        raise Exit(code=code)


_QUIET = 600.0
"""Seconds without a token, the loading of the model included, after which it is given up."""


def _show(head: Head, command: str) -> int:
    """Its output as it comes; its exit code."""
    code = 0
    try:
        for part in head.output(command, quiet=_QUIET):
            if isinstance(part, Result):
                if part.reason:
                    raise Exit(part.reason, code=1)
                write(part.stderr, file=sys.stderr)
                code = part.exited
            else:
                write(part)
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise Exit(f"{head.node.name}: the connection was lost: {error}", code=1) from None
    return code
