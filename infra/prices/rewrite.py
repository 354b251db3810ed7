"""Rewrites prices.toml as text: prices, days and sources change; comments, order and the rest stay.

Each price must be on one line, `{ cloud = ..., region = ..., sku = ..., ... },`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.errors import OperationError

Key = tuple[str, str, str]
"""(cloud, region, sku)"""
_LINE = re.compile(
    r'(?P<before>\s*\{ cloud = "(?P<cloud>[^"]+)", region = "(?P<region>[^"]+)", sku = "(?P<sku>[^"]+)",'
    r' unit = "[^"]+", usd_per_(?P<per>hour|month) = )[0-9.]+, as_of = "[^"]+", source = "[^"]+"(, estimate = true)?'
    r"(?P<after> \},.*)"
)


@dataclass(frozen=True)
class Wanted:
    """One entry of the table, whose price is wanted."""

    cloud: str
    region: str
    sku: str
    per: str
    """`hour` or `month`."""

    @property
    def key(self) -> Key:
        return self.cloud, self.region, self.sku


def wanted(text: str) -> list[Wanted]:
    """All entries of the table, in its order."""
    lines = (_LINE.fullmatch(line) for line in text.splitlines())
    return [Wanted(line["cloud"], line["region"], line["sku"], line["per"]) for line in lines if line]


def rewritten(text: str, found: Mapping[Key, float], today: str, sources: Mapping[str, str]) -> str:
    """The text with the prices in `found` (in the table's units), the day `today`, and each cloud's source."""
    lines = []
    for line in text.splitlines(keepends=True):
        match = _LINE.fullmatch(line.rstrip("\n"))
        price = found.get((match["cloud"], match["region"], match["sku"])) if match else None
        if match and price is not None:
            rest = f'{amount(price)}, as_of = "{today}", source = "{sources[match["cloud"]]}"{match["after"]}'
            line = f"{match['before']}{rest}\n"
        lines.append(line)
    return "".join(lines)


def amount(price: float) -> str:
    """A price as a TOML number without superfluous digits: 1.6128, 0.045, 38.0."""
    text = f"{price:.6f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def write(path: Path, text: str) -> None:
    """Write the file atomically. Raises OperationError if the text is not a valid table."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OperationError(f"{path.name}: would not be readable any more: {error}") from None
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
