"""A resource of a stack as the audit found it in the cloud or on this machine, whether or not the state has it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LiveResource:
    """One machine, disk, address, mount, ... of a stack."""

    kind: str
    what: str
    owner: str
    """The resource that it belongs to: its name on `local`, its id in a cloud, as Pulumi's state has them."""
    id: str = ""
    """Its own id, where that is another than its owner's: a disk is its machine's."""
    usd_per_hour: float | None = 0.0
    """What it costs as long as it is there; None: it costs, and the price is not in the table."""
    holds: str = ""
    """What a bucket has in it, in words; empty for everything that has no data of the user's."""
    ours: bool = True
    """Whether it carries the stack's tag; what only lies among the stack's things is never removed."""
    whose: str = ""
    """Whose it is, in words, when it carries the stack's name and belongs to another user."""
    unseen: bool = False
    """A kind that could not be listed, and `what` says why: whether any resource of it exists is not known."""
    arn: str = ""
    """On AWS, where the id in the state is but a name: what no other region has."""

    def is_in(self, known: Collection[str]) -> bool:
        """Whether it belongs to one of the state's resources, by their ids in small letters.

        A name is not enough where the state knows the same name of another region, by its ARN.
        """
        if self.arn and any(entry.lower().startswith("arn:") and _name(entry) == _name(self.arn) for entry in known):
            return self.arn.lower() in {entry.lower() for entry in known}
        return bool({self.owner.lower(), self.id.lower()} & {entry.lower() for entry in known})


def _name(arn: str) -> str:
    """What two ARNs of different regions have in common: the service, the type and the name."""
    parts = arn.lower().split(":", 5)
    return f"{parts[2]}:{parts[5]}" if len(parts) == 6 else ""


def to_json(live_resources: Sequence[LiveResource]) -> str:
    return json.dumps([vars(live) for live in live_resources])
