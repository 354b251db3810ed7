"""Lists every pin with its newest version, its end of support and why it is not the newest: `make pins`.

With --ends it asks no registry, and prints only which pins lose their support within 90 days. No date
fails it.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.pins import pin_table, registries
from tests.pins.pin_table import Pin

_QUERIES = 4
"""Registries' clients that run at once."""


def main(argv: Sequence[str] | None = None, today: datetime.date | None = None) -> int:
    """Print the table, or the warnings alone; returns the exit code, 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.pins", description=__doc__)
    parser.add_argument("--ends", action="store_true", help="only which pins lose their support; asks no registry")
    options = parser.parse_args(argv)

    pins = pin_table.read_pins()
    if not options.ends:
        print(f"asking the registries for {len(pins)} pins: some minutes", file=sys.stderr, flush=True)
        for line in rows(pins, newest_versions(pins)):
            print(line)

    for line in pin_table.end_warnings(pins, today or datetime.date.today()):
        print(f"warning: {line}")
    return 0


def newest_versions(pins: Sequence[Pin]) -> dict[str, str]:
    """Return the newest version of each package and module by its name, asked once each."""
    queries: dict[str, Callable[[str], str]] = {}
    for pin in pins:
        if pin.pypi:
            queries[pin.pypi] = registries.newest_on_pypi
        if pin.module:
            queries[pin.module] = registries.newest_go_module
    with ThreadPoolExecutor(_QUERIES) as pool:
        answers = pool.map(lambda name: queries[name](name), queries)
        return dict(zip(queries, answers, strict=True))


def rows(pins: Sequence[Pin], newest: Mapping[str, str]) -> list[str]:
    """Return the table's lines: pin, version here, newest, end of support, and the reason where it is
    not the newest."""
    table = [("PIN", "HERE", "NEWEST", "SUPPORT ENDS", "REASON")]
    for pin in pins:
        latest = newest.get(pin.pypi or pin.module, "no registry")
        is_newest = latest in pin.version.split(" / ")
        reason = pin.reason or "none: raise it, or write its reason into tests/pins/pins.toml"
        end = f"{pin.end} ({pin.source})" if pin.end else "unknown"
        table.append((pin.name, pin.version, latest, end, "" if is_newest else reason))
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    lines = []
    for row in table:
        columns = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*columns, row[4]]).rstrip())
    return lines


if __name__ == "__main__":
    sys.exit(main())
