"""What things cost: a dated table in the repository (prices.toml), and a bill made from it without asking anybody.

A price that is not in the table is an error, never zero: a bill that leaves something out is worse than none.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError

TABLE = Path(__file__).with_name("prices.toml")
HOURS_A_MONTH = 730.0
"""As both clouds' own calculators have it."""


@dataclass(frozen=True)
class Line:
    """One line of a bill."""

    what: str
    count: float
    unit: str
    usd_per_hour: float
    """For all of them together."""
    as_of: str
    """The day that the price was looked up, YYYY-MM-DD."""


def line(cloud: str, region: str, sku: str, count: float = 1, *, what: str = "") -> Line:
    """`count` of something, for an hour. Raises UsageError for what has no price in this region."""
    entry = _table().get((cloud, region, sku)) or _table().get((cloud, "*", sku))
    if entry is None:
        known = sorted({where for of, where, name in _table() if of == cloud and name == sku})
        there = f"priced are: {', '.join(known)}" if known else "it is in no region of the table"
        raise UsageError(f"no price for {sku} in {region}: {there}; add it to infra/prices.toml")
    hourly = entry["usd_per_month"] / HOURS_A_MONTH if "usd_per_month" in entry else entry["usd_per_hour"]
    return Line(what or sku, count, entry["unit"], hourly * count, entry["as_of"])


def total(lines: list[Line]) -> float:
    return sum(entry.usd_per_hour for entry in lines)


@functools.cache
def _table() -> dict[tuple[str, str, str], dict[str, Any]]:
    entries = tomllib.loads(TABLE.read_text())["price"]
    return {(entry["cloud"], entry["region"], entry["sku"]): entry for entry in entries}
