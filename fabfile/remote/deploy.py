"""Put the wheel of training/ and the node program on all nodes at once. A node that has the same content keeps it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from invoke.exceptions import Exit

from fabfile.launchers import VENV
from fabfile.output import next_command
from fabfile.remote import node_program, wheel
from fabfile.remote.command import last_words
from fabfile.remote.fleet import Connections, results_of
from fabfile.remote.known_hosts import SshError
from fabfile.stacks.pulumi_cli import ROOT
from infra.inventory import Node
from node import held_files

_TIMEOUT = 60


@dataclass(frozen=True)
class Package:
    """The wheel that goes to a node, and the hash of its content."""

    hash: str
    wheel: bytes
    tree: str = field(init=False)
    """The hash of the files that a node has once it is installed, with the program's copy (node/held_files.py)."""

    def __post_init__(self) -> None:
        # Once for a package: it goes to many nodes at the same time.
        with zipfile.ZipFile(io.BytesIO(self.wheel)) as file:
            hashes = {name: hashlib.sha256(file.read(name)).hexdigest() for name in file.namelist()}
        tree = held_files.digest({**hashes, "launch": node_program.digest()})
        object.__setattr__(self, "tree", tree)


@dataclass(frozen=True)
class Deployed:
    """A node that has the package."""

    folder: str
    busy: str  # the job that runs on the node; empty: none
    problem: str  # why the node cannot run the job in question; empty: it can


@cache
def package() -> Package:
    """The package of this checkout."""
    _, training = wheel.wheel(ROOT / "training")
    return Package(hashlib.sha256(training + node_program.content()).hexdigest()[:16], training)


def trainer_command(folder: str, *argv: str) -> str:
    """Shell that runs a module of the training package, if the folder still has the package of this checkout.

    Args:
        folder: where `deploy` has put the package
        argv: the module and its arguments
    """
    return node_program.copy_command(folder, "trainer", package().tree, f"{VENV}/python", *argv)


def deploy(
    fleet: Connections, nodes: Sequence[Node], job: str = "", ranks: int = 1, code: str = "", *, needed: bool = True
) -> dict[str, Deployed]:
    """Put the package on these nodes and ask each whether it can run the job file `job` (empty: no job). The result is
    by node name. Exit 1 names the nodes where this failed; if they are not `needed`, they are left out. `code`: the
    folder for the versions of the package, if not one of the user's own."""
    answers, wrong = results_of(lambda node: _one(fleet, node, job, ranks, code), nodes)
    if wrong and needed:
        raise Exit("\n".join([*wrong.values(), next_command("fab status")]), code=1)
    return answers


def _one(fleet: Connections, node: Node, job: str, ranks: int, code: str) -> Deployed:
    sent = package()
    wandb = node == fleet.cluster.head and bool(os.environ.get("WANDB_API_KEY"))  # only rank 0 needs it
    version = {"hash": sent.hash, "tree": sent.tree, "size": len(sent.wheel)}
    asked = {**version, "job": job, "ranks": ranks, "wandb": wandb, "code": code}
    connection = fleet.connection(node)
    node_program.put(connection)
    with connection.create_session() as channel:
        channel.settimeout(_TIMEOUT)
        channel.exec_command(node_program.command("install"))
        channel.sendall(json.dumps(asked).encode() + b"\n")
        lines = channel.makefile("r")
        try:
            if not json.loads(lines.readline())["have"]:
                channel.sendall(sent.wheel)
            answer = json.loads(lines.readline())
        except ValueError:
            raise SshError(f"{node.name}: cannot take the job's programs: {last_words(channel)}") from None
    return Deployed(answer["folder"], answer["busy"], answer["problem"])
