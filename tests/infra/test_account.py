"""The account's pre-flight: the operator's own address, the verb, and the program that it runs."""

from __future__ import annotations

import json

import pytest
from account_checks import Make, answering
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile.stacks import pulumi_cli
from fabfile.verbs.check import check
from infra.clouds import account
from infra.clouds.finding import Finding
from infra.config import stack_file
from infra.config.settings import load
from infra.errors import UsageError
from infra.state import stack_record

pytest_plugins = ["account_fixtures"]


def test_the_operators_address_is_compared(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for mine, expected in (("203.0.113.7", "ok"), ("198.51.100.4", "failed"), ("2001:db8::1", "undecided")):
        with answering(f"{mine}\n".encode()) as url:
            monkeypatch.setenv("TRAINYARD_ADDRESS_ECHO", url)
            found = account.address(make("aws-xeon"))
        assert found.state == expected, found
        if expected == "failed":
            assert found.mend == "fab config set adminCidr 198.51.100.4/32 --stack aws-xeon"
    monkeypatch.setenv("TRAINYARD_ADDRESS_ECHO", "http://127.0.0.1:1")
    found = account.address(make("aws-xeon"))
    assert found.state == "undecided" and "cannot be reached" in found.detail


def test_a_local_stack_needs_no_account(good: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="is of kind local: that needs no account"):
        account.check(load("local", good))


def test_the_program_takes_the_stacks_id_from_the_users_record(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr("sys.argv", ["account", "aws-xeon"])
    settings = make("aws-xeon")
    monkeypatch.setattr(stack_file, "settings", lambda _stack: settings)
    monkeypatch.setattr(account, "check", lambda settings: checked.append(settings.stack_id) or [])
    for record in (stack_record.Record("aaaa1111"), None):
        monkeypatch.setattr(stack_record, "read", lambda _stack, record=record: record)
        assert account.main() == 0
    assert checked == ["aaaa1111", ""]


def test_the_verb_prints_a_line_for_each_and_ends_with_the_first_mend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [
        Finding("sign-in", "ok", "account 1"),
        Finding("rights", "undecided", "not simulated", "look there"),
        Finding("zone", "failed", "use1-az3 does not offer it", "pulumi config set zone use1-az1 --stack yard"),
    ]
    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: json.dumps([vars(finding) for finding in findings]))
    with pytest.raises(Exit) as failed:
        check(Context(), stack="yard", account=True)
    assert failed.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "warn  rights      not simulated; mend: look there"
    assert lines[-1] == "next: pulumi config set zone use1-az1 --stack yard"
    findings.pop()
    check(Context(), stack="yard", account=True)  # what is undecided keeps nobody
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: fab up")
    with pytest.raises(Exit, match="not of an inventory"):
        check(Context(), inventory="nodes.json", account=True)
