"""Launchers: pure functions from (a job on nodes, values found at its start) to hostfile, environment and argv.

`fab train --dry-run` and the head, which starts the job, call the same ones: the dry run prints what is executed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePosixPath

from fabfile.launchers import gpu
from fabfile.launchers.program import Program, placed
from infra.inventory import Node

VENV = "/opt/trainyard/venv/bin"
RUNTIME = "/etc/trainyard/runtime.env"
SYSTEM_PYTHON = "/usr/bin/python3"
NAMES = ("mpirun", "torchrun")
"""Those that start jobs over SSH. `slurm` is the one of a cluster with Slurm, which has no other."""
SLURM = "slurm"
KUBERNETES = "kubernetes"
"""Of the jobs of a Kubernetes cluster, which has no other: the keepers in the pods start the ranks."""
KEEPERS = "keepers"
"""Over SSH of elastic jobs, where a launcher would end all ranks when one is lost, and of jobs without the head, where
mpirun runs: the keepers start the ranks there, too."""


class LaunchError(ValueError):
    """The launcher cannot start this job: one line."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A job and the nodes of one attempt at it."""

    id: str
    nodes: tuple[Node, ...]  # the first has rank 0: the head, if the job has it
    run_dir: str = ""
    """The job's directory, the same path on every node; empty: a probe, which keeps no files."""
    code: str = ""
    """The folder with the package `training` and with `launch`, the same path on every node; empty: for a probe."""
    probe: tuple[str, ...] = ()  # a command that every rank runs instead of the trainer, for `fab check`
    program: Program | None = None  # a user's program that runs instead of the trainer
    shared_dir: str = ""  # the folder that all nodes share; empty: there is none
    node_program: str = ""
    """The node program (see node/main.py), the same path on every node; empty: `launch` in `code`."""
    interface: str = ""
    """The network interface for the collectives; empty: each node takes that of its route to the others."""
    attempt: int = 1
    elastic: bool = False
    """The ranks go on without those that are lost, and let others join (training/elastic.py)."""
    threads: int = 0  # computing threads of each rank; 0: a node's cores divided among its ranks
    usd_per_hour: float = 0.0  # the price of all its nodes; 0: free, or unknown
    resume: bool = False
    """The job was begun before, perhaps on another cluster: its mirror may have files that its nodes lack."""

    @property
    def places(self) -> tuple[Node, ...]:
        """The nodes with as many slots as ranks run on each, which a user's program may change."""
        return placed(self.nodes, self.program.per) if self.program else self.nodes

    @property
    def ranks(self) -> int:
        """How many ranks there are on all nodes."""
        return sum(node.slots for node in self.places)

    @property
    def is_again(self) -> bool:
        """Whether something was done before, by an earlier attempt or by the job before it was resumed."""
        return self.resume or self.attempt > 1

    def on(self, nodes: tuple[Node, ...], attempt: int) -> Launch:
        """The same job on these nodes."""
        return replace(self, nodes=nodes, attempt=attempt)


@dataclass(frozen=True, kw_only=True)
class HeadValues:
    """Values that only the head knows, at the job's start; the defaults are their variables in a dry run."""

    port: str = "$MASTER_PORT"  # a free port
    interface: str = "$INTERFACE"  # the interface of the route to the other nodes
    began: str = "$BEGAN"  # Unix time from which the job's cost counts: its start, moved on by its pauses
    folder: str = "$FOLDER"  # the folder of this attempt's hostfile and SSH command
    nodes: str = "$NODES"  # with Slurm or Kubernetes: the nodes that it has chosen, as `nodes_to_text` writes them
    master: str = "$MASTER_ADDR"  # with Slurm or Kubernetes: the address of the first of them


_VARIABLES = "|".join(re.escape(str(variable.default)) for variable in fields(HeadValues))
_OPEN = re.compile(rf"({_VARIABLES})(?![A-Za-z0-9_])|~/")


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The command that runs on the head, its environment and its hostfile."""

    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    """The launcher's own environment. The ranks' is in argv; for torchrun it is here too."""
    hostfile: str = ""

    @property
    def shell(self) -> str:
        """The shell line: runtime.env first, so that the job's own variables win. LD_PRELOAD is unset, as the ranks
        preload tcmalloc themselves, and the launcher and its helpers do not need it."""
        exports = "; ".join(f"export {key}={shlex.quote(value)}" for key, value in self.environment.items())
        return f"set -a; . {RUNTIME}; set +a; unset LD_PRELOAD; {exports}; exec {shlex.join(self.argv)}"


def rank_environment(launch: Launch, found: HeadValues) -> dict[str, str]:
    """The environment of every rank. Each node adds its own part: see node/job/rank_wrapper.py."""
    environment = {
        "TRAINYARD_JOB": launch.id,
        "TRAINYARD_NODES": nodes_to_text(launch.nodes),
        "TRAINYARD_ATTEMPT": str(launch.attempt),
        "PYTHONUNBUFFERED": "1",  # else a rank's lines appear only when its buffer is full
        "MASTER_ADDR": launch.nodes[0].private_ip,
        "MASTER_PORT": found.port,
        "OMP_NUM_THREADS": str(launch.threads or min(node.cores_per_slot for node in launch.places)),
    }
    if launch.program is not None:
        environment |= {"RUN_DIR": launch.run_dir, "TRAINYARD_PER": launch.program.per}
        if launch.program.starts_ranks:
            environment["OMP_NUM_THREADS"] = str(min(node.cores_per_slot for node in launch.nodes))
        environment |= {"TRAINYARD_RESUMED": "1"} if launch.is_again else {}
    elif not launch.probe:
        environment |= {"RUN_DIR": launch.run_dir, "PYTHONPATH": launch.code}
    if launch.usd_per_hour:
        environment |= {"TRAINYARD_USD_PER_HOUR": f"{launch.usd_per_hour:g}", "TRAINYARD_BEGAN": found.began}
    if launch.elastic:
        environment["TRAINYARD_ELASTIC"] = "1"
    if launch.threads:
        environment["TRAINYARD_THREADS"] = str(launch.threads)
    if launch.interface:
        environment["TRAINYARD_INTERFACE"] = launch.interface
    if not any(node.gpus for node in launch.nodes):
        environment["ACCELERATE_USE_CPU"] = "true"
    return environment | gpu.environment(launch.nodes, launch.interface or found.interface)


def rank_argv(launch: Launch) -> list[str]:
    """What the launcher starts for each rank: our wrapper, which starts the program."""
    program = [SYSTEM_PYTHON, "-I", launch.node_program or f"{launch.code}/launch"]
    if launch.probe:
        return [*program, "probe-rank", "--", *launch.probe]
    if launch.program is not None:
        return [*program, "program-rank", "--", *launch.program.argv]
    job = str(PurePosixPath(launch.run_dir) / "job.toml")
    again = ["--resume"] if launch.is_again else []
    return [*program, "rank", "--", f"{VENV}/python", "-u", "-m", "training.train", job, *again]


def nodes_to_text(nodes: Sequence[Node]) -> str:
    """The nodes for the ranks' environment, the head first, as JSON in one word."""
    keys = ("name", "private_ip", "slots", "cores_per_slot")
    return json.dumps([{key: getattr(node, key) for key in keys} for node in nodes], separators=(",", ":"))


def nodes_from_text(text: str) -> tuple[Node, ...]:
    """The reverse of `nodes_to_text`: nodes with only the fields that it writes."""
    return tuple(Node(**entry) for entry in json.loads(text))


def shown(plan: LaunchPlan, where: str = "the launcher's environment on the head") -> str:
    """A plan for a person to read; `where`: whose environment it has."""
    lines = [f"# {where}, after {RUNTIME}"]
    lines += [f"{key}={_quoted(value)}" for key, value in plan.environment.items()]
    if plan.hostfile:
        lines += ["", "# hostfile", plan.hostfile.rstrip()]
    return "\n".join([*lines, "", "# what runs", *_broken(plan.argv)])


def _broken(argv: list[str]) -> list[str]:
    """argv as lines to paste into a shell, one option with its values on each."""
    rows: list[list[str]] = [[]]
    for word in argv:
        if rows[-1] and (word.startswith("-genv") or word == SYSTEM_PYTHON):
            rows.append([])
        rows[-1].append(word)
    return " \\\n".join(" ".join(map(_quoted, row)) for row in rows).splitlines()


def _quoted(text: str) -> str:
    """Quote a word for a shell that a person pastes it into. Variables of `HeadValues` and a leading `~/` stay
    unquoted; all else is quoted, other variables too. The head runs LaunchPlan.shell, in which these are filled in."""
    before = _OPEN.match(text)
    if before is None:
        return shlex.quote(text)
    rest = text[before.end() :]
    return before[0] + (shlex.quote(rest) if rest else "")
