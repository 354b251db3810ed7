"""Fetches today's prices of everything in the table from the providers, and writes them into it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.clouds import sdk
from infra.config import kinds
from infra.errors import OperationError
from infra.prices import rewrite
from infra.prices.rewrite import Key, Wanted
from infra.prices.table import TABLE

Ask = Callable[[str, Sequence[str]], dict[str, set[float]]]
"""(region, skus) -> sku -> prices found."""
_LISTS = {cloud: sdk.load(f"infra.clouds.{cloud}.price_list") for cloud in kinds.CLOUDS}
CLOUDS: dict[str, Ask] = {cloud: module.prices for cloud, module in _LISTS.items()}
SOURCES: dict[str, str] = {cloud: module.SOURCE for cloud, module in _LISTS.items()}


@dataclass
class Refreshed:
    """The result of a refresh."""

    asked: int = 0
    found: dict[Key, float] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Prices that were not changed, and why."""


def refresh(path: Path = TABLE, clouds: Sequence[str] = tuple(CLOUDS), today: str = "") -> Refreshed:
    """Rewrite the table. Raises OperationError, leaving the table unchanged, if a provider cannot be asked."""
    today = today or datetime.datetime.now(datetime.UTC).date().isoformat()
    text = path.read_text(encoding="utf-8")
    done = Refreshed()
    for cloud in clouds:
        _ask(cloud, [entry for entry in rewrite.wanted(text) if entry.cloud == cloud], done)
    rewrite.write(path, rewrite.rewritten(text, done.found, today, SOURCES))
    return done


def _ask(cloud: str, wanted: list[Wanted], done: Refreshed) -> None:
    for region in dict.fromkeys(entry.region for entry in wanted):
        here = [entry for entry in wanted if entry.region == region]
        try:
            found = CLOUDS[cloud](region, [entry.sku for entry in here])
        except (OSError, EOFError) as error:  # a truncated gzip is an EOFError
            raise OperationError(
                f"prices of {cloud} in {region} cannot be had, the table is as it was: {error}"
            ) from None
        done.asked += len(here)
        for entry in here:
            values = {value for value in found.get(entry.sku, set()) if value > 0}
            if len(values) == 1:
                done.found[entry.key] = values.pop()
            else:
                why = f"{len(values)} different prices" if values else "no price"
                done.left.append(f"{entry.sku} in {region}: {cloud} has {why} for it")
