"""Pulumi's plugin for a cloud is fetched before a program runs, and only if it is not there."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Sequence

import pytest
from invoke.exceptions import Exit

from fabfile.stacks import plugins, pulumi_cli
from infra.clouds import sdk
from infra.config.kinds import AWS, AZURE, LOCAL

THERE = [
    {"name": "aws", "kind": "resource", "version": "7.51.1"},
    {"name": "python", "kind": "language"},
]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What Pulumi was run with; an installation ends with exit code 0."""
    return played(monkeypatch, 0)


def played(monkeypatch: pytest.MonkeyPatch, code: int) -> list[list[str]]:
    ran: list[list[str]] = []

    def follow(argv: Sequence[str]) -> int:
        ran.append(list(argv))
        return code

    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: json.dumps(THERE))
    monkeypatch.setattr(pulumi_cli, "follow", follow)
    return ran


def test_what_is_there_is_not_fetched(ran: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    plugins.fetch([])
    plugins.fetch([["aws", "7.51.1"]])
    assert (ran, capsys.readouterr().out) == ([], "")


def test_what_is_missing_is_fetched_in_its_version(ran: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    plugins.fetch([["aws", "7.52.0"]])
    assert ran == [["pulumi", "plugin", "install", "resource", "aws", "v7.52.0"]]
    assert capsys.readouterr().out == "fetching Pulumi's plugin for aws, 7.52.0, once; it tries five times\n"


@pytest.mark.parametrize(
    ("code", "ends", "line"),
    [
        (
            255,
            1,
            r"Pulumi's plugin for azure-native, 3\.29\.0, cannot be fetched; nothing was changed; .* --file ARCHIVE",
        ),
        (pulumi_cli.INTERRUPTED, pulumi_cli.INTERRUPTED, "None"),
    ],
)
def test_one_that_cannot_be_had_ends_the_verb(code: int, ends: int, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, code)
    with pytest.raises(Exit) as ended:
        plugins.fetch([["azure-native", "3.29.0"]])
    assert ended.value.code == ends
    assert re.fullmatch(line, str(ended.value.message))


def test_which_plugins_a_cloud_needs_its_own_sdk_says() -> None:
    assert sdk.plugins(LOCAL) == []
    for cloud, package, name in ((AWS, "pulumi_aws", "aws"), (AZURE, "pulumi_azure_native", "azure-native")):
        pytest.importorskip(package)
        assert sdk.plugins(cloud) == [[name, importlib.metadata.version(package)]]
