"""infra.clouds.audit: where a stack is looked for when its file does not say it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from infra.clouds import audit
from infra.clouds.live_resource import LiveResource
from infra.clouds.local import orphans
from infra.config import stack_file
from infra.errors import UsageError

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
