"""`fab train --resume`: a job goes on with its own settings; what changes them is said, what is wrong is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit

from fabfile.backends.ssh import mirror, resume
from fabfile.backends.ssh.head import find
from fabfile.job_file import resolve
from infra.inventory import Node, SshCluster

CLUSTER = SshCluster(name="lab", nodes=tuple(Node(name=f"node{n}", private_ip=f"10.0.0.{n}") for n in (1, 2, 3)))
STATES = [{"id": name, "state": "SUCCEEDED"} for name in ("demo-2", "smoke-9", "demo-12")]


class Head:
    """What a cluster's head answers of one job."""

    cluster, node, folder = CLUSTER, CLUSTER.head, "code"

    def __init__(self, *overrides: str, nodes: int = 2, state: str = "FAILED") -> None:
        self.text, self.nodes, self.state = resolve("smoke", overrides, 1).text, nodes, state

    def ask(self, verb: str, *_: str) -> Any:
        return {"jobs": [{"id": "smoke-1", "state": self.state}], "job": {"job": self.text, "nodes": self.nodes}}[verb]


def resumed(head: Any, *overrides: str, job: str = "") -> Any:
    before = resume.before(head, "smoke-1", job, overrides)
    return resume.settings(before, job, overrides, 1)


def test_a_job_is_found_by_its_id_its_number_or_as_the_latest() -> None:
    assert find(STATES, "demo-2") == STATES[0] and find(STATES, "9") == STATES[1]
    assert find(STATES, "latest") == STATES[2] and find(STATES, "2") == STATES[0]
    assert find(STATES, "demo-9") is None and find(STATES, "1") is None and find([], "latest") is None


def test_a_resumed_job_keeps_its_own_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen before: 60 steps became the file's 600, the rate jumped, and a finished run went on."""
    again = resumed(Head("train.steps=60", "train.lr=0.001"), job="smoke")
    assert "steps = 60\n" in again.text and "lr = 0.001\n" in again.text
    said = capsys.readouterr().out
    assert "keeps its own settings" in said and "train.steps: 60 -> 20" in said and "train.lr: 0.001 -> 0.003" in said


def test_overrides_are_applied_to_its_own_settings_and_each_change_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    again = resumed(Head("train.steps=60"), "train.steps=90", "train.seed=1337")
    assert "steps = 90\n" in again.text
    assert capsys.readouterr().out.splitlines() == ["smoke-1: train.steps: 60 -> 90"]


def test_a_run_that_is_done_wants_more_steps() -> None:
    done = Head("train.steps=60", state="SUCCEEDED")
    with pytest.raises(Exit, match=r"has done its 60 steps.*fab train --resume smoke-1 train\.steps=120") as caught:
        resumed(done)
    assert caught.value.code == 2
    assert "steps = 61\n" in resumed(done, "train.steps=61").text


def test_a_bad_override_is_one_line() -> None:
    with pytest.raises(Exit, match=r"train\.step: no such key \(did you mean train\.steps\?\)") as caught:
        resumed(Head(), "train.step=3")
    assert caught.value.code == 2


@pytest.mark.parametrize(("count", "had", "expected"), [(0, 2, 2), (3, 2, 3), (0, 9, 3), (0, 0, 3), (1, 3, 1)])
def test_it_goes_on_with_as_many_nodes_as_it_had(count: int, had: int, expected: int) -> None:
    before = resume.Before("smoke-1", "", had, mirrored=False, succeeded=False)
    assert len(resume.nodes(CLUSTER, before, count)) == expected


def test_a_job_that_its_mirror_alone_knows_goes_on_with_the_mirrors_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    text = resolve("smoke", ["train.steps=77"], 1).text
    monkeypatch.setattr(mirror, "has", lambda head, url, job: True)
    monkeypatch.setattr(mirror, "job_file", lambda head, url: asked.append(url) or text)
    again = resumed(Head(), "checkpoint.mirror=s3://bucket/runs")
    assert asked == ["s3://bucket/runs/smoke-1"] and "steps = 77\n" in again.text
    monkeypatch.setattr(mirror, "job_file", lambda head, url: "")
    with pytest.raises(Exit, match=r"has no job\.toml: name the job: fab train JOB --resume smoke-1"):
        resumed(Head(), "checkpoint.mirror=s3://bucket/runs")
    assert "steps = 20\n" in resumed(Head(), "checkpoint.mirror=s3://bucket/runs", job="smoke").text


def test_a_job_without_its_file_is_said(tmp_path: Path) -> None:
    head = Head()
    head.text = ""
    with pytest.raises(Exit, match=r"node1: smoke-1 has no job\.toml"):
        resumed(head)
