"""infra.clouds.audit: where a stack is looked for when its file does not say it."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import pytest

from infra.clouds import audit
from infra.clouds.live_resource import LiveResource
from infra.clouds.local import orphans
from infra.config import stack_file, summary
from infra.config.kinds import CLOUDS, CLUSTERS
from infra.config.values import SettingsError
from infra.errors import UsageError
from infra.prices import cost

BROKEN = {
    "not YAML": "config: [",
    "a secret": "config: {trainyard:owner: {secure: v1:abc}}",
    "no such cluster": "config: {trainyard:cluster: aws-xeno}",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stack's, which is not there yet."""
    path = tmp_path / "Pulumi.yard.yaml"
    monkeypatch.setattr(stack_file, "path_of", lambda _stack, _root=None: path)
    return path


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_not_taken_for_a_clean_stack(
    text: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a cloud's. With something on this machine it is this machine's, and that is listed and swept."""

    def asked(*flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["audit", "yard", *flags])
        code = audit.main()
        return code, *capsys.readouterr()

    here: list[LiveResource] = []
    monkeypatch.setattr(orphans, "find", lambda _stack, _ids=None: here)
    monkeypatch.setattr(orphans, "sweep", lambda _stack, _known, _ids=None: here)
    assert asked() == (0, "[]\n", ""), "no file at all: local, by its name"
    file.write_text(text)
    for flags in ((), ("--sweep",)):
        code, out, error = asked(*flags)
        assert (code, out, len(error.splitlines())) == (2, "", 1)
    assert asked("--local") == (0, "[]\n", ""), "its state has said where it is"
    here.append(LiveResource("mount", "/var/lib/trainyard/yard/nodes/node1", "node1"))
    for flags in ((), ("--sweep",)):
        code, out, error = asked(*flags)
        assert (code, error, json.loads(out)[0]["kind"]) == (0, "", "mount")


def test_a_machine_that_cannot_be_asked_is_not_a_clean_stack_either(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_linux(_stack: str, _ids: object = None) -> list[LiveResource]:
        raise FileNotFoundError("/proc/self/mountinfo")

    file.write_text("config: [")
    monkeypatch.setattr(orphans, "find", no_linux)
    with pytest.raises(UsageError, match="not YAML"):
        audit.find("yard", {})


@pytest.mark.parametrize("cluster", [name for name, facts in CLUSTERS.items() if facts.name in CLOUDS])
def test_a_stack_is_found_and_priced_without_the_key_and_the_values_that_up_needs(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another machine, or after the stack's file was put back as it is in the repository."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SettingsError, match=r"^(publicKey|adminCidr) = "):
        stack_file.settings(cluster)
    settings = audit.cloud_settings(cluster)
    assert settings is not None and settings.cluster == cluster and settings.cloud.owner == ""
    assert summary.of(settings)["cluster"] == cluster
    assert cost.bill(settings, datetime.date(2026, 11, 1))["hourly_usd"] > 0


def test_a_value_that_is_wrong_is_named_when_a_stack_is_looked_for(file: Path) -> None:
    """With a wrong region it would be looked for where it is not."""
    file.write_text("config: {trainyard:cluster: aws-xeon, trainyard:maxHours: 24, trainyard:region: US East}")
    with pytest.raises(SettingsError, match=r"^region = "):
        audit.cloud_settings("yard")
