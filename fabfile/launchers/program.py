"""A user's program, which takes the trainer's place in a job: what it is, where its processes run, what each is told.

Pure functions: the head, which starts it, the nodes and a dry run call the same ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import PurePosixPath
from typing import Any

from infra.inventory import Node

SLOT, NODE, HEAD = PER = ("slot", "node", "head")
"""How many processes of it there are: one for each rank, one on each node, or one, on the first node."""
GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL when its job is stopped."""
SILENCE = 120.0
"""Seconds without a `trainyard.beat` after which a process that has called it counts as hung: as the trainer's."""
WORK = "work"
"""The folder of the run directory that the program starts in."""
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_MPI = ("PMI_", "MPI_LOCAL", "PMIX_", "HYDRA_", "HYDI_")
"""What mpirun tells its ranks begins so."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A user's program as it is to run on the nodes."""

    argv: tuple[str, ...]
    """As the user wrote it."""
    name: str
    """The job's id is NAME-NUMBER."""
    per: str = SLOT
    """One of PER."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that the user has named, with their values; not secret."""
    secrets: tuple[str, ...] = ()
    """Names of the operator's variables that every process gets, and whose values are on no disk of ours."""
    workdir: str = ""
    """The hash of the working directory as it was sent; empty: the program starts in an empty folder."""
    requirements: str = ""
    """The text of the extra requirements, in pip's form; empty: the image's environment alone."""
    grace: float = GRACE

    def to_record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @property
    def starts_ranks(self) -> bool:
        """Whether it is a launcher that starts a process for each of a node's ranks."""
        return is_accelerate(self.argv) or any(PurePosixPath(word).name in _TORCHRUN for word in self.argv)

    @property
    def may_be_mpis(self) -> bool:
        """Whether each process may be a rank of an MPI program, and starts no ranks of its own."""
        return self.per != HEAD and not (self.per == NODE and self.starts_ranks)

    @property
    def shell(self) -> str:
        """The command as a person types it into a shell."""
        return shlex.join(self.argv)


def from_record(record: Mapping[str, Any]) -> Program:
    """The reverse of `to_record`; ValueError for what is no program's record."""
    known = {field.name: record[field.name] for field in fields(Program) if field.name in record}
    try:
        known["environment"] = tuple((str(name), str(value)) for name, value in known.get("environment", ()))
        program = Program(**{**known, "argv": tuple(known["argv"]), "secrets": tuple(known.get("secrets", ()))})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a program's record: {error}") from None

    texts = (*program.argv, *program.secrets, program.name, program.workdir, program.requirements)
    if not program.argv or not all(isinstance(text, str) for text in texts):
        raise ValueError("not a program's record: a text of it is none")
    if program.per not in PER or not isinstance(program.grace, int | float):
        raise ValueError(f"not a program's record: per is {program.per!r}, grace is {program.grace!r}")
    return program


def placed(nodes: Sequence[Node], per: str) -> tuple[Node, ...]:
    """The nodes with as many slots as processes run on each: with HEAD the others than the first have none."""
    if per == SLOT:
        return tuple(nodes)
    whole = [replace(node, slots=1, cores_per_slot=node.slots * node.cores_per_slot) for node in nodes]
    return tuple(replace(node, slots=0) if per == HEAD and node is not whole[0] else node for node in whole)


def process_environment(nodes: Sequence[Node], per: str, rank: int) -> dict[str, str]:
    """What torch, accelerate and transformers read of a process' place: its number, how many there are, and the same
    within its node. A launcher that starts processes of its own on each node, torchrun, finds its options there:
    https://docs.pytorch.org/docs/stable/elastic/run.html, and PET_ in torch/distributed/argparse_util.py."""
    there = placed(nodes, per)
    number, local = [(index, local) for index, node in enumerate(there) for local in range(node.slots)][rank]
    values = {
        "RANK": str(rank),
        "WORLD_SIZE": str(sum(node.slots for node in there)),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(there[number].slots),
        "NODE_RANK": str(number),
        "GROUP_RANK": str(number),
    }
    if per != SLOT:
        values["PET_NNODES"] = str(sum(1 for node in there if node.slots))
        values["PET_NODE_RANK"] = str(number)
        values["PET_NPROC_PER_NODE"] = str(nodes[number].slots)
    return values


def completed(program: Program, nodes: Sequence[Node], numbers: Mapping[str, str]) -> list[str]:
    """The command of one process: as the user wrote it, but `accelerate launch` gets the options that the user left out
    and for which it reads no variable. `numbers`: NODE_RANK, MASTER_ADDR and MASTER_PORT."""
    words = list(program.argv)
    if program.per == SLOT or not is_accelerate(words):
        return words
    there = [node for node, place in zip(nodes, placed(nodes, program.per), strict=True) if place.slots]
    options = {
        "num_machines": str(len(there)),
        "machine_rank": numbers["NODE_RANK"],
        "num_processes": str(sum(node.slots for node in there)),
        "main_process_ip": numbers["MASTER_ADDR"],
        "main_process_port": numbers["MASTER_PORT"],
    }
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words[2:] if word.startswith("--")}
    added = [word for name, value in options.items() if name not in given for word in (f"--{name}", value)]
    return [*words[:2], *added, *words[2:]]


def without_mpi(program: Program, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what mpirun tells its ranks, for a program that starts ranks of its own: these would take
    themselves for mpirun's."""
    if program.may_be_mpis:
        return dict(environment)
    return {name: value for name, value in environment.items() if not name.startswith(_MPI)}


def hostfile(nodes: Sequence[Node]) -> str:
    """`node1:2`: a line for each node with its slots, as Intel MPI and MPICH read it."""
    return "".join(f"{node.name}:{node.slots}\n" for node in nodes)


def is_accelerate(argv: Sequence[str]) -> bool:
    """Whether a command is `accelerate launch`."""
    return len(argv) > 1 and PurePosixPath(argv[0]).name == "accelerate" and argv[1] == "launch"
