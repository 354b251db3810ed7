"""What a stack costs: `python -m infra.prices.cost STACK`, or with `--refresh [--cloud aws|azure]`.

Prints the bill as JSON: {"stack", "cluster", "region", "lines": [{"what", "count", "unit", "usd_per_hour", "as_of",
"estimate", "on_demand", "verified"}], "hourly_usd", "idle_hourly_usd", "words", "full_at_once", "daily_usd",
"max_hours", "until_max_hours_usd", "oldest", "age_days"}, from the table alone. With --refresh the providers are asked,
the table is rewritten, and the JSON is {"asked", "found", "unchanged": [why]}.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from typing import Any

from infra import clusters
from infra.config import stack_file
from infra.config.settings import Settings
from infra.errors import prints_json
from infra.prices import refresh, table


def bill(settings: Settings, today: datetime.date) -> dict[str, Any]:
    """The bill for a stack as if it were up, with the table's age. Raises UsageError for what has no price."""
    lines: list[table.PriceLine] = clusters.of(settings).bill(settings)
    sums: table.Sums = getattr(clusters.of(settings), "SUMS", table.Sums())
    hourly = table.total(lines)
    oldest = min((line.as_of for line in lines), default="")
    return {
        "stack": settings.stack,
        "cluster": settings.cluster,
        "region": settings.cloud.region,
        "lines": [vars(line) for line in lines],
        "hourly_usd": round(hourly, 6),
        "words": [sums.idle, sums.full],
        "full_at_once": sums.full_at_once,
        "idle_hourly_usd": round(table.idle(lines), 6),
        "daily_usd": round(hourly * 24, 2),
        "max_hours": settings.max_hours,
        "until_max_hours_usd": round(hourly * settings.max_hours, 2) if settings.max_hours else None,
        "oldest": oldest,
        "age_days": (today - datetime.date.fromisoformat(oldest)).days if oldest else 0,
    }


@prints_json
def main() -> dict[str, Any]:
    """A stack's bill, or what a refresh of the table changed, as the command line says; for JSON."""
    parser = argparse.ArgumentParser(prog="python -m infra.prices.cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack", nargs="?")
    parser.add_argument("--refresh", action="store_true", help="ask the providers, and rewrite the table of prices")
    parser.add_argument("--cloud", choices=tuple(refresh.CLOUDS), help="refresh only this one's")
    args = parser.parse_args()
    if args.refresh == bool(args.stack):
        parser.error("a stack, or --refresh")
    if args.refresh:
        return vars(refresh.refresh(clouds=[args.cloud] if args.cloud else tuple(refresh.CLOUDS)))
    return bill(stack_file.settings_to_find(args.stack), datetime.datetime.now(datetime.UTC).date())


if __name__ == "__main__":
    sys.exit(main())
