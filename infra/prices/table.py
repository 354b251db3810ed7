"""The dated table of prices in the repository (prices.toml), and bills computed from it without a request.

A missing price is an error, never zero: an incomplete bill is worse than none.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError

Row = dict[str, Any]
TABLE = Path(__file__).with_name("prices.toml")
HOURS_A_MONTH = 730.0
"""Hours per month, as in both clouds' own calculators."""
SPOT = "/spot"
EVERYWHERE = "*"
"""The region of what costs the same in all of a cloud's regions."""


@dataclass(frozen=True)
class PriceLine:
    """One line of a bill."""

    what: str
    count: float
    unit: str
    usd_per_hour: float
    """For all `count` items together."""
    as_of: str
    """Day of the price, YYYY-MM-DD."""
    estimate: bool = False
    """The price was derived from another one: it is not a list price."""
    on_demand: bool = False
    """It is billed only for a time: machines that Slurm starts for jobs, or that end before the rest."""
    verified: bool = True
    """The provider itself was asked for the price."""


@dataclass(frozen=True)
class Sums:
    """What is said of a bill's two sums, if some of its lines are billed only for a time."""

    idle: str = "while no job runs"
    full: str = "with the whole queue"
    full_at_once: bool = False
    """Whether `up` starts all of it."""


class NoPrice(UsageError):
    """The table has no price for something in a region."""

    def __init__(self, cloud: str, region: str, sku: str) -> None:
        rows = [key for key in _table() if key[0] == cloud]
        regions = sorted({where for _, where, name in rows if name == sku.removesuffix(SPOT)})
        there = f"priced are: {', '.join(regions)}" if regions else "it is in no region of the table"
        super().__init__(f"no price for {sku} in {region}: {there}; add it to infra/prices/prices.toml")
        self.in_region = is_priced(cloud, region)
        """Whether the table has a price for anything in that region."""


def line(cloud: str, region: str, sku: str, count: float = 1, *, what: str = "") -> PriceLine:
    """The cost of `count` items for an hour. A spot instance without a price of its own costs a share of on-demand.

    Raises NoPrice for what has none in this region.
    """
    known = _table()
    found = known.get((cloud, region, sku)) or known.get((cloud, EVERYWHERE, sku))
    share: dict[str, Any] = {}
    if found is None and sku.endswith(SPOT):
        share = _read()["spot"].get(cloud, {})
        found = known.get((cloud, region, sku.removesuffix(SPOT))) if share else None
    if found is None:
        raise NoPrice(cloud, region, sku)
    hourly = found["usd_per_month"] / HOURS_A_MONTH if "usd_per_month" in found else found["usd_per_hour"]
    as_of = min(found["as_of"], share.get("as_of", found["as_of"]))
    estimate = bool(share) or found.get("estimate", False)
    hourly *= count * share.get("share", 1.0)
    verified = {found["source"], share.get("source", found["source"])} <= set(_read()["asked"])
    return PriceLine(what or sku, count, found["unit"], hourly, as_of, estimate, verified=verified)


def is_priced(cloud: str, region: str) -> bool:
    """Whether the table has a price for anything in this region."""
    return any((provider, where) == (cloud, region) for provider, where, _ in _table())


def total(lines: list[PriceLine]) -> float:
    """The sum of all lines, in USD per hour."""
    return sum(entry.usd_per_hour for entry in lines)


def idle(lines: list[PriceLine]) -> float:
    """The sum of what is billed all the time, in USD per hour."""
    return total([entry for entry in lines if not entry.on_demand])


@functools.cache
def _read() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


@functools.cache
def _table() -> dict[tuple[str, str, str], Row]:
    """(cloud, region, sku) -> its row, with the sizes of a family beside its `.large`, and with guesses."""
    rows = _read()["list"]["price"]
    larger = [
        _times(row, times, sku=row["sku"].replace("large", size))
        for row in rows
        if row["sku"].endswith(".large")
        for size, times in _read()["sizes"][row["cloud"]].items()
    ]
    return {(row["cloud"], row["region"], row["sku"]): row for row in (*larger, *guesses(_read()), *rows)}


def guesses(document: Mapping[str, Any]) -> list[Row]:
    """Rows that a region does not have, in proportion to another's."""
    rows = document["list"]["price"]
    known = {(row["cloud"], row["region"], row["sku"]) for row in rows}
    return [
        _times(row, share, region=region, source="guess", estimate=True)
        for cloud, regions in document["guess"].items()
        for region, shares in regions.items()
        for row in rows
        if (row["cloud"], row["region"]) == (cloud, shares["like"]) and (cloud, region, row["sku"]) not in known
        for prefix, share in shares.items()
        if row["sku"].startswith(prefix)
    ]


def _times(row: Row, times: float, **changed: Any) -> Row:
    priced = {key: value * times if key.startswith("usd_per_") else value for key, value in row.items()}
    return {**priced, **changed}
