"""A resource of a stack that exists in the cloud or on this machine, whether or not it is in the state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class LiveResource:
    """A machine, disk, address, mount, ... of a stack."""

    kind: str
    what: str
    owner: str
    """The state's resource that it belongs to: on `local` its name, in a cloud its id."""
    id: str = ""
    """Its own id, if it differs from its owner's: a disk belongs to its machine."""
    usd_per_hour: float | None = 0.0
    """Its price while it exists; None: it costs, but the table lacks the price."""
    holds: str = ""
    """What a bucket contains, in words; empty for resources without user data."""
    ours: bool = True
    """Whether it carries the user's own stack's tag; others are never removed."""
    whose: str = ""
    """Who else owns it, in words, if it has the stack's name but belongs to another user."""
    unseen: bool = False
    """A kind that could not be listed (`what` says why): it is unknown whether any exists."""
    arn: str = ""
    """On AWS, if the id in the state is only a name: the ARN, which differs between regions."""

    def is_in(self, known: Collection[str]) -> bool:
        """Whether it belongs to one of the state's resources, given their ids in lower case.

        A name alone does not count if the state has, by its ARN, the same name in another region.
        """
        if self.arn and any(entry.lower().startswith("arn:") and _name(entry) == _name(self.arn) for entry in known):
            return self.arn.lower() in {entry.lower() for entry in known}
        return bool({self.owner.lower(), self.id.lower()} & {entry.lower() for entry in known})


def _name(arn: str) -> str:
    """The part of an ARN that is the same in every region: service, type and name."""
    parts = arn.lower().split(":", 5)
    return f"{parts[2]}:{parts[5]}" if len(parts) == 6 else ""
