"""Puts the wheel of training/ and the programs of a job on the nodes: all at once, each content once."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import paramiko
from invoke.exceptions import Exit

from fabfile.remote import wheel
from fabfile.remote.fleet import Fleet, SshError, in_parallel
from fabfile.stacks.pulumi_cli import ROOT
from infra.inventory import Node
from node import FOLDER

_RECEIVER = (FOLDER / "unpack.py").read_text()
_TIMEOUT = 60


@dataclass(frozen=True)
class Package:
    """What goes to a node; equal content has an equal hash."""

    hash: str
    wheel: bytes
    launch: bytes


@dataclass(frozen=True)
class Deployed:
    """A node that has the package."""

    folder: str
    busy: str
    """The job that the node has; empty: none."""
    problem: str
    """Why the node cannot have the job that it was asked about; empty: it can."""


@cache
def package() -> Package:
    """That of this checkout."""
    _, training = wheel.wheel(ROOT / "training")
    launch = wheel.launch()
    return Package(hashlib.sha256(training + launch).hexdigest()[:16], training, launch)


def deploy(fleet: Fleet, nodes: Sequence[Node], job: str = "", ranks: int = 1) -> dict[str, Deployed]:
    """The package on all these nodes, and what each says to the job; Exit 1 names those that cannot be reached."""
    answers = attempt(fleet, nodes, job, ranks)
    wrong = [answer for answer in answers.values() if isinstance(answer, str)]
    if wrong:
        raise Exit("\n".join([*wrong, "next: fab status"]), code=1)
    return {name: answer for name, answer in answers.items() if isinstance(answer, Deployed)}


def attempt(fleet: Fleet, nodes: Sequence[Node], job: str = "", ranks: int = 1) -> dict[str, Deployed | str]:
    """The same for those that can be reached; for the others why not."""
    return in_parallel(lambda node: _one(fleet, node, job, ranks), nodes)


def _one(fleet: Fleet, node: Node, job: str, ranks: int) -> Deployed | str:
    """A string says why not."""
    parts = package()
    wandb = node == fleet.cluster.head and bool(os.environ.get("WANDB_API_KEY"))  # rank 0's alone
    asked = {"hash": parts.hash, "sizes": {"wheel": len(parts.wheel), "launch": len(parts.launch)}}
    try:
        with fleet.connection(node).create_session() as channel:
            channel.settimeout(_TIMEOUT)
            channel.exec_command(f"exec python3 -I -c {shlex.quote(_RECEIVER)}")
            channel.sendall(json.dumps({**asked, "job": job, "ranks": ranks, "wandb": wandb}).encode() + b"\n")
            answers = channel.makefile("r")
            if not _answer(answers.readline())["have"]:
                channel.sendall(parts.wheel + parts.launch)
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
