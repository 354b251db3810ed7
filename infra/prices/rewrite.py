"""prices.toml as a text that is rewritten: prices, days and sources change; comments, order and all else stay.

Each price has a line of its own, `{ cloud = ..., region = ..., sku = ..., ... },`.
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
    """What the table has a price of."""

    cloud: str
    region: str
    sku: str
    per: str
    """`hour` or `month`."""

    @property
    def key(self) -> Key:
        return self.cloud, self.region, self.sku


def wanted(text: str) -> list[Wanted]:
    """Everything that the table has a price of, in its order."""
    lines = (_LINE.fullmatch(line) for line in text.splitlines())
    return [Wanted(line["cloud"], line["region"], line["sku"], line["per"]) for line in lines if line]


def rewritten(text: str, found: Mapping[Key, float], today: str, sources: Mapping[str, str]) -> str:
    """The table with the prices that were found (in the table's own unit), their day, and the cloud's source."""
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
    """1.6128, 0.045, 38.0: as TOML has a number, without digits that mean nothing."""
    text = f"{price:.6f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def write(path: Path, text: str) -> None:
    """Whole or not at all; a text that is no table any more is an OperationError."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OperationError(f"{path.name}: would not be readable any more: {error}") from None
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
