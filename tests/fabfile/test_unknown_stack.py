"""A stack that has neither a file nor a state is a typing error, and every verb says that: it is not one to be made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from fab_command import fab

from fabfile.stacks import pulumi_cli

VERBS = (
    *(["status"], ["wait"], ["jobs"], ["refresh"], ["check"], ["top"], ["kubeconfig"], ["ssh-config"]),
    *(["logs", "1"], ["stop", "1"], ["ssh", "node1"], ["run", "true"], ["train", "demo"]),
)


@pytest.fixture(params=["pulumi", "embedded"])
def engine(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Pulumi's command, or the embedded engine, which knows no stack."""

    def ask(argv: Sequence[str], **_more: str) -> str:
        if argv[:3] == ["pulumi", "stack", "ls"]:
            return "[]"
        assert argv[1:4] == ["-m", "infra.state.engine", "export"], f"it asks no more before it says so: {argv}"
        return json.dumps({"resources": [], "outputs": {}})

    monkeypatch.setattr(pulumi_cli, "has_pulumi", lambda: request.param == "pulumi")
    monkeypatch.setattr(pulumi_cli, "ask", ask)
    return str(request.param)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_stack_without_file_and_state_is_unknown(
    words: list[str], engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab(*words, "--stack", "nope") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stack nope is unknown: there is no stacks/Pulumi.nope.yaml; there are: ")
    assert {"local", "aws-xeon"} <= set(line.partition("there are: ")[2].split(", "))


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_stack_that_has_a_file_is_not_up(words: list[str], engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab(*words, "--stack", "aws-xeon") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "stack aws-xeon is not up; run: fab up --stack aws-xeon"
