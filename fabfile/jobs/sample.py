"""`fab sample`: text from a job's model, as the head makes it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator

import paramiko
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.jobs.head import Head, runs, state
from fabfile.launchers import RUNTIME, VENV
from fabfile.output import interruptible
from fabfile.remote import guarded
from fabfile.ssh import Fleet, apart
from fabfile.targets import load


@task(
    help={
        "job": "the job's id",
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
    tokens: int = 100,
    temperature: float = 0.8,
    top_k: int = 200,
    seed: int = 1337,
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
        state(head, job)
        words = [f"--{name}={value}" for name, value in options.items()]
        program = shlex.join([f"{VENV}/python", "-m", "training.sample", f"{runs(cluster)}/{job}", *words])
        threads = max(node.cores_per_slot for node in cluster.nodes[:1])
        environment = f"PYTHONPATH={head.folder} OMP_NUM_THREADS={threads} PYTHONIOENCODING=utf-8"
        code = _show(head, f"set -a; . {RUNTIME}; {environment}; set +a; exec {program}")
    if code != 0:
        raise Exit(code=code)


def _show(head: Head, command: str) -> int:
    """Its output as it comes, not line by line; its exit code."""
    code = 0
    try:
        for said in apart(_output(head, command)):
            if isinstance(said, int):
                code = said
            else:
                sys.stdout.buffer.write(said)
                sys.stdout.buffer.flush()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise Exit(f"{head.node.name}: the connection was lost: {error}", code=1) from None
    return code


def _output(head: Head, command: str) -> Generator[bytes | int, None, None]:
    """What a command prints, then its exit code."""
    with head.fleet.connection(head.node).create_session() as channel:
        channel.exec_command(guarded(command))
        while data := channel.recv(4096):
            yield data
        sys.stderr.write(channel.makefile_stderr("rb").read().decode(errors="replace"))
        yield int(channel.recv_exit_status())
