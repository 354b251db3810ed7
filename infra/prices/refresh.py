"""Fetches today's prices of everything in the table from the providers, and writes them into it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.clouds import sdk
from infra.config import kinds
from infra.errors import OperationError
from infra.prices import table

Ask = Callable[[str, Sequence[str]], dict[str, set[float]]]
"""(region, skus) -> sku -> prices found."""
_LISTS = {cloud: sdk.load(f"infra.clouds.{cloud}.price_list") for cloud in kinds.CLOUDS}
CLOUDS: dict[str, Ask] = {cloud: module.prices for cloud, module in _LISTS.items()}
SOURCES: dict[str, str] = {cloud: module.SOURCE for cloud, module in _LISTS.items()}


@dataclass
class Refreshed:
    """The result of a refresh."""

    asked: int = 0
    found: int = 0
    unchanged: list[str] = field(default_factory=list)
    """Prices that were not changed, and why."""


def refresh(path: Path = table.TABLE, clouds: Sequence[str] = tuple(CLOUDS), today: str = "") -> Refreshed:
    """Rewrite prices, days and sources in the table; comments and order stay, and what was guessed gets a row.

    Raises OperationError, leaving the table unchanged, if a provider cannot be asked.
    """
    import tomlkit  # here, as every `up` reads prices and only this writes them

    today = today or datetime.datetime.now(datetime.UTC).date().isoformat()
    document: Any = tomlkit.parse(path.read_text(encoding="utf-8"))
    done, guessed = Refreshed(), table.guesses(document)
    for cloud in clouds:
        rows = [row for row in (*document["list"]["price"], *guessed) if row["cloud"] == cloud]
        _refresh_cloud(cloud, rows, today, done)
    for row in guessed:
        if row["source"] != "guess":
            line = tomlkit.inline_table()
            line.update(row)
            document["list"]["price"].add_line(line, indent="    ")
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(tomlkit.dumps(document), encoding="utf-8")
    temporary.replace(path)
    return done


def _refresh_cloud(cloud: str, rows: list[dict[str, Any]], today: str, done: Refreshed) -> None:
    for region in dict.fromkeys(row["region"] for row in rows):
        here = [row for row in rows if row["region"] == region]
        place = "all regions" if region == table.EVERYWHERE else region
        try:
            found = CLOUDS[cloud](region, [row["sku"] for row in here])
        except (OSError, EOFError) as error:  # a truncated gzip is an EOFError
            raise OperationError(
                f"cannot get the prices of {cloud} in {place}, the table is unchanged: {error}"
            ) from None
        done.asked += len(here)
        for row in here:
            values = {value for value in found.get(row["sku"], set()) if value > 0}
            if len(values) == 1:
                done.found += 1
                row["usd_per_hour" if "usd_per_hour" in row else "usd_per_month"] = round(values.pop(), 6)
                row.update(as_of=today, source=SOURCES[cloud])
                row.pop("estimate", None)
            else:
                why = f"{len(values)} different prices" if values else "no price"
                done.unchanged.append(f"{row['sku']} in {place}: {cloud} has {why} for it")
