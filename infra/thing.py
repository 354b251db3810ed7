"""Something of a stack that exists, whatever any state says: what the audit lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Thing:
    """One machine, disk, address, mount, ... `owner` is the resource that it belongs to."""

    kind: str
    what: str
    owner: str


def to_json(things: Sequence[Thing]) -> str:
    return json.dumps([vars(thing) for thing in things])
