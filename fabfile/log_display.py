"""How the lines of a followed job are shown: all, each Nth step, or the steps on one live line of a terminal."""

from __future__ import annotations

import re
import sys

from fabfile.output import hint, is_terminal, prefixed, say, width, write
from fabfile.remote.openssh import MEET, STRANGER

_STEP = re.compile(r"step (\d+)/(\d+) loss ")
_VALIDATION = " val "


class Shown:
    """What is on the screen. With `every` None a terminal has one live line of steps; elsewhere all lines are shown.

    A step with a validation loss, the last step, and whatever is no step are always lines of their own.
    """

    def __init__(self, every: int | None = 1) -> None:
        self._every = every or 1
        self._live = every is None and is_terminal(sys.stdout)
        self._drawn = False
        self._told_of_stranger = False

    def line(self, node: str, rank: str, text: str) -> None:
        """`[node2 rank=1] step 40/200 ...`: with the name that `ssh node2` understands."""
        who = node if rank == "-" else f"{node} rank={rank}"
        step = _STEP.match(text)
        passing = step is not None and step[1] != step[2] and _VALIDATION not in text
        if passing and self._live:
            room = max(10, width() - len(who) - 4)
            write(prefixed(who, text[:room]), over=True)
            self._drawn = True
        elif not passing or int(step[1]) % self._every == 0:  # type: ignore[index] # a step, as it passes
            self._clear()
            say(prefixed(who, text))
        if STRANGER in text and not self._told_of_stranger:
            self._told_of_stranger = True
            self.warn(hint(MEET))

    def warn(self, text: str) -> None:
        """A line about the following itself."""
        self._clear()
        say(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the live line as it is, and what follows below it."""
        if self._drawn:
            self._drawn = False
            write("\n")

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = False
            write("", over=True)
