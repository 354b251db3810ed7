"""A manager's view of a stack's machines: which there are, and who makes those again that are lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fabfile.managed.replacement import equip, make_again
from fabfile.targets import load_any
from infra.inventory import Cluster


@dataclass(frozen=True)
class Needs:
    """What a job needs of nodes before it can have them."""

    bring: Collection[str]
    """The nodes that get its code and data, from another node."""
    job: str
    """Its job.toml."""
    code: str
    """Its programs' folder, the same on every node."""
    without: Collection[str] = ()
    """Nodes that are in trouble themselves, and are not waited for."""


class Machines(Protocol):
    """The machines of one stack."""

    def cluster(self) -> Cluster:
        """The cluster as it is now. Exit if that cannot be told."""

    def has_changed(self) -> bool:
        """Whether somebody else has made machines again since `cluster` was last asked."""

    def nobody(self) -> str:
        """Why no machine can be made now, and what helps; empty: it can."""

    def make_again(self, names: Collection[str], gone: Collection[str], needs: Needs) -> None:
        """Make these nodes again and no others, and give the job what it `needs`; `gone`: those whose machines have
        ended. Raises NoRoom, NotReplaced."""

    def equip(self, needs: Needs) -> None:
        """Give the job what it `needs` of nodes that are there. Raises NotReplaced."""


@dataclass(frozen=True)
class OfStack:
    """Made by the stack's own engine, on this machine."""

    stack: str
    facts: Mapping[str, Any]
    """Of the stack, as in infra.config.summary."""

    def cluster(self) -> Cluster:
        return load_any(self.stack, "")

    def has_changed(self) -> bool:
        return False

    def nobody(self) -> str:
        return ""

    def make_again(self, names: Collection[str], gone: Collection[str], needs: Needs) -> None:
        make_again(self.stack, self.facts, names, gone)
        self.equip(needs)

    def equip(self, needs: Needs) -> None:
        equip(self.cluster, self.facts, needs.bring, needs.job, needs.code, needs.without)
