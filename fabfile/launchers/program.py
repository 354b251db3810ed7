"""A program of the user's, which takes the trainer's place in a job: what it is. `fab launch` starts it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

PER = ("slot", "node", "head")
"""How many processes of it there are: one for each rank, one on each node, or one, on the first node."""
GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL when its job is stopped."""
SILENCE = 120.0
"""Seconds without a `trainyard.beat` after which a process that has called it counts as hung: as the trainer's."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A user's program as it is to run on the nodes."""

    argv: tuple[str, ...]
    """As the user wrote it."""
    name: str
    """The job's id is NAME-NUMBER."""
    per: str = "slot"
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
    def shell(self) -> str:
        """The command as a person types it into a shell."""
        return shlex.join(self.argv)


def from_record(record: Mapping[str, Any]) -> Program:
    """The reverse of `to_record`; ValueError for what is no program's record."""
    known = {field.name: record[field.name] for field in fields(Program) if field.name in record}
    try:
        known["environment"] = tuple((str(name), str(value)) for name, value in known.get("environment", ()))
        return Program(**{**known, "argv": tuple(known["argv"]), "secrets": tuple(known.get("secrets", ()))})
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a program's record: {error}") from None
