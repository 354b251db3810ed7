"""`python -m infra.prices.cost` and `fab cost`: the bill of a stack, in JSON and for a person."""

from __future__ import annotations

import datetime
import json
import types
from dataclasses import replace

import pytest
from invoke.exceptions import Exit

from fabfile.stacks import pulumi_cli
from fabfile.verbs.cost import _refresh, announce, shown
from fabfile.verbs.cost import cost as verb
from infra import clusters
from infra.config.settings import Settings, load
from infra.errors import OperationError
from infra.prices import cost, table
from infra.prices import refresh as price_refresh

TODAY = datetime.date(2027, 3, 1)
LINES = [
    table.PriceLine("3 nodes, m7i.8xlarge", 3, "instance", 4.5, "2026-11-21"),
    table.PriceLine("NAT gateway", 1, "gateway", 0.045, "2026-09-01"),
]


@pytest.fixture
def stack(good: dict[str, str]) -> Settings:
    return load("local", good)


def billed(monkeypatch: pytest.MonkeyPatch, lines: list[table.PriceLine], **more: object) -> None:
    monkeypatch.setattr(clusters, "of", lambda _: types.SimpleNamespace(bill=lambda _: lines, **more))


def test_the_local_stack_costs_nothing(stack: Settings) -> None:
    found = cost.bill(stack, TODAY)
    assert (found["lines"], found["hourly_usd"], found["daily_usd"], found["age_days"]) == ([], 0, 0, 0)
    assert shown(found) == "stack local: $0 an hour: it runs on this machine"


def test_a_bill_has_its_sums_and_the_age_of_its_oldest_price(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    billed(monkeypatch, LINES)
    found = cost.bill(replace(stack, max_hours=10), TODAY)
    assert (found["hourly_usd"], found["daily_usd"], found["until_max_hours_usd"]) == (4.545, 109.08, 45.45)
    assert (found["oldest"], found["age_days"]) == ("2026-09-01", 181)
    lines = shown(found).splitlines()
    assert lines[0].split() == ["WHAT", "COUNT", "UNIT", "USD/HOUR", "AS", "OF"]
    assert lines[1].split() == ["3", "nodes,", "m7i.8xlarge", "3", "instance", "4.5000", "2026-11-21"]
    sums = f"${found['hourly_usd']:.2f} an hour, $109.08 a day, $45.45 until maxHours (10 h)"
    assert f"stack local: {sums}" in lines
    assert lines[-1] == "the prices are 181 days old (2026-09-01): fab cost --refresh"


def test_what_runs_only_with_jobs_is_told_apart(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm starts and ends such machines: the price is one while no job runs, and another with the whole queue."""
    billed(monkeypatch, [LINES[1], replace(LINES[0], on_demand=True)])
    found = cost.bill(replace(stack, max_hours=10), TODAY)
    assert (found["idle_hourly_usd"], found["hourly_usd"]) == (0.045, 4.545)
    sums = "$0.04 an hour while no job runs, $4.54 with the whole queue; until maxHours (10 h) $0.45 to $45.45"
    assert f"stack local: {sums}" in shown(found).splitlines()
    endless = shown(cost.bill(replace(stack, max_hours=0), TODAY))
    assert "$4.54 with the whole queue, without an end: maxHours is 0" in endless


def test_what_ends_before_the_rest_is_told_apart(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that `up` starts and that end at maxHours, while what is no node costs on."""
    sums = table.Sums("once its nodes have ended", "with all of them", full_at_once=True)
    billed(monkeypatch, [LINES[1], replace(LINES[0], on_demand=True)], SUMS=sums)
    text = shown(cost.bill(replace(stack, max_hours=10), TODAY))
    said = "$0.04 an hour once its nodes have ended, $4.54 with all of them; until maxHours (10 h) $45.45"
    assert f"stack local: {said}" in text.splitlines()


def test_an_estimate_and_a_stack_without_an_end_are_said(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    billed(monkeypatch, [replace(LINES[0], estimate=True)])
    found = cost.bill(replace(stack, max_hours=0), datetime.date(2026, 11, 22))
    text = shown(found)
    assert "~$4.50 an hour, ~$108.00 a day, without an end: maxHours is 0" in text
    assert "~4.5000" in text and "~ an estimate, not a list price" in text and "days old" not in text


def test_a_price_that_the_provider_was_not_asked_for_is_marked(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    billed(monkeypatch, [LINES[0], replace(LINES[1], verified=False)])
    lines = shown(cost.bill(stack, TODAY)).splitlines()
    assert lines[1].endswith("2026-11-21") and lines[2].endswith("2026-09-01 ?")
    assert "? the provider was not asked for this price: fab cost --refresh" in lines
    billed(monkeypatch, LINES)
    assert "?" not in shown(cost.bill(stack, TODAY))


def test_the_price_is_one_line_before_anything_is_made(
    stack: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    billed(monkeypatch, LINES)
    announce(cost.bill(replace(stack, max_hours=10), datetime.date(2026, 11, 22)))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith("price: $4.5") and "$45.45 until maxHours (10 h)" in lines[0]
    assert lines[0].endswith("(what for: fab cost --stack local)") and "82 days old" in lines[1]


# --- the command line ---


def run(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr("sys.argv", ["cost", *argv])
    return cost.main()


def test_the_command_prints_the_bill(
    good: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infra.config.stack_file.read", lambda _: good)
    assert run(monkeypatch, "local") == 0
    assert json.loads(capsys.readouterr().out)["hourly_usd"] == 0


def test_what_cannot_be_billed_is_one_line(
    good: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "no-such-stack") == 2
    assert capsys.readouterr().err.startswith("stack = 'no-such-stack': must be one with a file")
    monkeypatch.setattr("infra.config.stack_file.read", lambda _: good)

    def bill(_: Settings) -> list[table.PriceLine]:
        return [table.line("aws", "mars-1", "m7i.8xlarge")]

    monkeypatch.setattr(clusters, "of", lambda _: types.SimpleNamespace(bill=bill))
    assert run(monkeypatch, "local") == 2
    assert capsys.readouterr().err.startswith("no price for m7i.8xlarge in mars-1: priced are: eu-west-1, ")


def test_a_refresh_that_fails_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refresh(clouds: list[str]) -> price_refresh.Refreshed:
        raise OperationError(f"prices of {clouds[0]} cannot be had")

    monkeypatch.setattr(price_refresh, "refresh", refresh)
    assert run(monkeypatch, "--refresh", "--cloud", "azure") == 1
    assert capsys.readouterr().err == "prices of azure cannot be had\n"


@pytest.mark.parametrize("argv", [[], ["local", "--refresh"], ["--refresh", "--cloud", "moon"]])
def test_what_makes_no_sense_is_refused(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *argv)
    assert ended.value.code == 2 and "usage: python -m infra.prices.cost" in capsys.readouterr().err


def test_a_refresh_tells_what_was_not_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remaining = [f"thing{n} in eastus: azure has no price for it" for n in range(12)]
    record = json.dumps({"asked": 20, "found": 8, "unchanged": remaining})
    monkeypatch.setattr(pulumi_cli, "ask", lambda argv: record)
    _refresh("azure", quiet=False)
    lines = capsys.readouterr().out.splitlines()
    assert "8 of 20 prices are today's, in infra/prices/prices.toml" in lines
    assert "not changed: thing9 in eastus: azure has no price for it" in lines and "and 2 more" in lines
    with pytest.raises(Exit, match="--cloud: goes with --refresh"):
        verb.body(None, cloud="azure")
