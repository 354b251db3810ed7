"""Where and when to ask the cloud again for nodes that it had no room for: later, and then in another zone or type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FIRST, LONGEST = 30.0, 600.0
"""Seconds between two tries in one place: at first, doubled each time, and at most."""
HERE = 3
"""Tries in one place before the next one."""
KEYS = {"zones": "zone", "types": "instanceType"}
"""The option that allows other places, and the stack's key that says which one it is."""


@dataclass(frozen=True)
class Place:
    """A value of one of the stack's keys."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key} {self.value}"


@dataclass
class Places:
    """The places that the user allowed, the stack's own not among them."""

    others: list[Place] = field(default_factory=list)
    _failures: int = 0

    @classmethod
    def of(cls, zones: Sequence[str], types: Sequence[str]) -> Places:
        """Other zones first: the same machines, at the same price."""
        return cls([*(Place("zone", zone) for zone in zones), *(Place("instanceType", name) for name in types)])

    def no_room(self) -> tuple[float, Place | None]:
        """After one more failure: (seconds to wait, the place to go to then; None: the same again)."""
        self._failures += 1
        wait = min(LONGEST, FIRST * 2 ** (self._failures - 1))
        if self._failures >= HERE and self.others:
            self._failures = 0
            return 0.0, self.others.pop(0)
        return wait, None

    def room(self) -> None:
        """The nodes are there: the next shortage begins anew."""
        self._failures = 0
