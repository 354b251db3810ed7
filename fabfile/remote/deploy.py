"""Put the wheel of training/ and the node program on all nodes at once. A node that has the same content keeps it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import paramiko
from invoke.exceptions import Exit

from fabfile.remote import node_program, wheel
from fabfile.remote.fleet import Fleet, SshError, in_parallel
from fabfile.stacks.pulumi_cli import ROOT
from infra.inventory import Node

_TIMEOUT = 60


@dataclass(frozen=True)
class Package:
    """The wheel that goes to a node, and the hash of its content."""

    hash: str
    wheel: bytes


@dataclass(frozen=True)
class Deployed:
    """A node that has the package."""

    folder: str
    busy: str
    """The job that runs on the node; empty: none."""
    problem: str
    """Why the node cannot run the job in question; empty: it can."""


@cache
def package() -> Package:
    """The package of this checkout."""
    _, training = wheel.wheel(ROOT / "training")
    return Package(hashlib.sha256(training + node_program.content()).hexdigest()[:16], training)


def deploy(fleet: Fleet, nodes: Sequence[Node], job: str = "", ranks: int = 1) -> dict[str, Deployed]:
    """Put the package on these nodes and ask each whether it can run the job file `job` (empty: no job).

    The result is by node name. Exit 1 names the nodes where this failed.
    """
    answers = in_parallel(lambda node: _one(fleet, node, job, ranks), nodes)
    wrong = [answer for answer in answers.values() if isinstance(answer, str)]
    if wrong:
        raise Exit("\n".join([*wrong, "next: fab status"]), code=1)
    return {name: answer for name, answer in answers.items() if isinstance(answer, Deployed)}


def _one(fleet: Fleet, node: Node, job: str, ranks: int) -> Deployed | str:
    """Deploy to one node; a string says why that failed."""
    sent = package()
    wandb = node == fleet.cluster.head and bool(os.environ.get("WANDB_API_KEY"))  # rank 0's alone
    asked = {"hash": sent.hash, "size": len(sent.wheel), "job": job, "ranks": ranks, "wandb": wandb}
    try:
        connection = fleet.connection(node)
        node_program.put(connection)
        with connection.create_session() as channel:
            channel.settimeout(_TIMEOUT)
            channel.exec_command(node_program.command("install"))
            channel.sendall(json.dumps(asked).encode() + b"\n")
            answers = channel.makefile("r")
            if not _answer(answers.readline())["have"]:
                channel.sendall(sent.wheel)
            told = _answer(answers.readline())
            return Deployed(told["folder"], told["busy"], told["problem"])
    except ValueError:
        return f"{node.name}: cannot take the job's programs: {_last_word(channel)}"
    except (SshError, paramiko.SSHException, EOFError, OSError) as error:
        return str(error) if isinstance(error, SshError) else f"{node.name}: the connection was lost: {error}"


def _answer(line: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(line)
    return answer


def _last_word(channel: paramiko.Channel) -> str:
    said = channel.makefile_stderr("r").read().strip()
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return (text or "no answer").splitlines()[-1]
