"""What a managed job may cost, last and try, and what it has cost until now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fabfile.output import duration

TRIES = 20


@dataclass(frozen=True)
class Bounds:
    """Where the manager stops the job, with a checkpoint."""

    max_usd: float = math.inf
    max_hours: float = math.inf
    tries: int = TRIES  # replacements of nodes and restarts of the job together

    def reached(self, usd: float, hours: float) -> str:
        """The bound of money or time that is reached, as one line; empty: none."""
        if usd >= self.max_usd:
            return f"its nodes have cost ${usd:.2f} (--max-usd {self.max_usd:g})"
        if hours >= self.max_hours:
            return f"it has run for {duration(hours * 3600)} (--max-hours {self.max_hours:g})"
        return ""

    def shown(self) -> str:
        """For the first line: `at most $20, 12 h, 20 replacements and restarts`."""
        money = "" if math.isinf(self.max_usd) else f"${self.max_usd:g}, "
        time = "" if math.isinf(self.max_hours) else f"{self.max_hours:g} h, "
        return f"at most {money}{time}{self.tries} replacements and restarts"


def spent(prices: Sequence[tuple[float, float]], now: float) -> float:
    """US dollars until `now`, Unix time in seconds. `prices`: (from when, US dollars an hour), in order of time; each
    holds until the next. All of the job's nodes count all the time, also while one of them is missing: never less than
    what they cost."""
    ends = [since for since, _ in prices[1:]] + [now]
    return sum(max(0.0, end - since) / 3600 * usd for (since, usd), end in zip(prices, ends, strict=True))
