"""`fab cost`: what a stack costs, up or not, from the dated table in infra/prices/prices.toml."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.output import next_command, say, table
from fabfile.stacks import pulumi_cli

OLD_DAYS = 60  # after which the prices are reported as old
_MOST_SHOWN = 10
_HEADING = ("WHAT", "COUNT", "UNIT", "USD/HOUR", "AS OF")


@task(
    help={
        "refresh": "first ask the providers for today's prices, and rewrite infra/prices/prices.toml",
        "cloud": "with --refresh: only aws, or only azure",
    }
)
def cost(_c: Context, stack: str = "", json: bool = False, refresh: bool = False, cloud: str = "") -> None:
    """Show what everything that the stack declares costs: an hour, a day, and until maxHours."""
    if cloud and not refresh:
        raise Exit("--cloud: goes with --refresh", code=pulumi_cli.USAGE)
    if refresh:
        _refresh(cloud, quiet=json)
    bill = pulumi_cli.answer("prices.cost", stack)
    say(json_text.dumps(bill) if json else shown(bill))


def announce(bill: Mapping[str, Any]) -> None:
    """Print the price in one line, before anything is made."""
    line = f"price: {summary(bill)}"
    say(f"{line}   (what for: fab cost --stack {bill['stack']})" if bill["lines"] else line)
    if bill["age_days"] > OLD_DAYS:
        say(_old(bill))


def shown(bill: Mapping[str, Any]) -> str:
    """The bill for a person to read."""
    if not bill["lines"]:
        return f"stack {bill['stack']}: {summary(bill)}"
    rows = [_HEADING, *(_row(line) for line in bill["lines"])]
    lines = [table(rows), f"stack {bill['stack']}: {summary(bill)}"]
    if any(line["estimate"] for line in bill["lines"]):
        lines.append("~ an estimate, not a list price; Spot prices move by the hour")
    if any(not line["verified"] for line in bill["lines"]):
        lines.append("? the provider was not asked for this price: fab cost --refresh")
    lines.append("list prices without tax and traffic; what a month's storage costs, counted by the hour")
    if bill["age_days"] > OLD_DAYS:
        lines.append(_old(bill))
    return "\n".join(lines)


def summary(bill: Mapping[str, Any]) -> str:
    """$4.97 an hour, $119.28 a day, $119.28 until maxHours (24 h)"""
    if not bill["lines"]:
        return "$0 an hour: it runs on this machine"
    circa = "~" if any(line["estimate"] for line in bill["lines"]) else ""
    if any(line.get("on_demand") for line in bill["lines"]):
        return _of_two_sums(bill, circa)
    text = f"{circa}${bill['hourly_usd']:.2f} an hour, {circa}${bill['daily_usd']:.2f} a day"
    if bill["until_max_hours_usd"] is None:
        return f"{text}, without an end: maxHours is 0"
    return f"{text}, {circa}${bill['until_max_hours_usd']:.2f} until maxHours ({bill['max_hours']} h)"


def _of_two_sums(bill: Mapping[str, Any], circa: str) -> str:
    """$0.82 an hour while no job runs, $63.30 with the whole queue; until maxHours (24 h) $19.68 to $1519.20"""
    idle, hours, (empty, full) = bill["idle_hourly_usd"], bill["max_hours"], bill["words"]
    text = f"{circa}${idle:.2f} an hour {empty}, {circa}${bill['hourly_usd']:.2f} {full}"
    if bill["until_max_hours_usd"] is None:
        return f"{text}, without an end: maxHours is 0"
    least = "" if bill["full_at_once"] else f"{circa}${idle * hours:.2f} to "
    return f"{text}; until maxHours ({hours} h) {least}{circa}${bill['until_max_hours_usd']:.2f}"


def _row(line: Mapping[str, Any]) -> tuple[str, ...]:
    circa = "~" if line["estimate"] else ""
    as_of = line["as_of"] if line["verified"] else f"{line['as_of']} ?"
    return (line["what"], f"{line['count']:g}", line["unit"], f"{circa}{line['usd_per_hour']:.4f}", as_of)


def _old(bill: Mapping[str, Any]) -> str:
    return f"the prices are {bill['age_days']} days old ({bill['oldest']}): fab cost --refresh"


def _refresh(cloud: str, *, quiet: bool) -> None:
    if not quiet:
        say("asking the providers; AWS has one large file a region, which takes minutes")
    only = ["--cloud", cloud] if cloud else []
    done = pulumi_cli.answer("prices.cost", "--refresh", *only)
    if quiet:
        return
    say(f"{done['found']} of {done['asked']} prices are today's, in infra/prices/prices.toml")
    for why in done["unchanged"][:_MOST_SHOWN]:
        say(f"not changed: {why}")
    if len(done["unchanged"]) > _MOST_SHOWN:
        say(f"and {len(done['unchanged']) - _MOST_SHOWN} more")
    say(next_command("git diff infra/prices/prices.toml"))
