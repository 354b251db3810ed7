"""Something of a stack that exists, whatever any state says: what the audit lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Thing:
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
    unseen: bool = False
    """Not a thing but a kind that could not be looked at; `what` says why. Nothing there is not known then."""


def to_json(things: Sequence[Thing]) -> str:
    return json.dumps([vars(thing) for thing in things])
