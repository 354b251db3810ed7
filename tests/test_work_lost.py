"""What runs on nodes that are about to go is said first; a head that does not answer keeps nobody waiting."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from invoke.exceptions import Exit

from fabfile import backend, work_lost

CLUSTER = {"nodes": [{"name": f"node{number}"} for number in (1, 2, 3)]}
JOBS = [
    {"id": "demo-1", "state": "SUCCEEDED", "nodes": ["node1", "node2", "node3"]},
    {"id": "demo-2", "state": "RUNNING", "nodes": ["node1", "node2"]},
]


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "stack_output", lambda _stack: json.dumps(CLUSTER))
    monkeypatch.setattr(work_lost, "jobs_of", lambda _stack, _cluster: JOBS)


def test_a_destroy_names_the_job_that_runs_and_the_runs(up: None, capsys: pytest.CaptureFixture[str]) -> None:
    work_lost.say_of_destroy("yard")
    job, runs = capsys.readouterr().out.splitlines()
    assert job == "job demo-2 is RUNNING on node1, node2: it ends with them"
    assert "demo-1, demo-2" in runs and "fab fetch ID" in runs


@pytest.mark.parametrize(("gone", "lines"), [(["node3"], 1), (["node2"], 2), (["node1"], 3), ([], 0)])
def test_an_up_names_what_its_nodes_take_with_them(
    gone: list[str], lines: int, up: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs are on the head's disk: another node's going takes none."""
    monkeypatch.setattr(work_lost, "nodes_that_go", lambda _stack: gone)
    work_lost.say_of_up("yard")
    assert len(capsys.readouterr().out.splitlines()) == lines


@pytest.mark.parametrize("engine", ["pulumi", "embedded"])
def test_the_nodes_that_go_are_read_from_the_preview(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [("node1", "same"), ("node2", "delete-replaced"), ("node3", "delete"), ("network", "delete")]
    answers = {
        "pulumi": json.dumps({"steps": [{"urn": f"urn:x::{name}", "op": op} for name, op in steps]}),
        "embedded": "  node2: +- replace (image)\n  node3: - delete\n  node4: + create\n  2 changes\n",
    }
    monkeypatch.setattr(backend, "has_pulumi", lambda: engine == "pulumi")
    monkeypatch.setattr(backend, "ask", lambda _argv: answers[engine])
    assert work_lost.nodes_that_go("yard") == ["node2", "node3"]


def test_a_cluster_that_is_not_up_has_nothing_to_lose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_up(_stack: str) -> Any:
        raise Exit("not up", code=2)

    monkeypatch.setattr(backend, "stack_output", not_up)
    work_lost.say_of_destroy("yard")
    work_lost.say_of_up("yard")
    assert capsys.readouterr().out == ""


def test_a_head_that_does_not_answer_is_said_and_waited_for_briefly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(work_lost, "ANSWER_S", 0.2)
    monkeypatch.setattr("fabfile.targets.load", lambda *_args: time.sleep(30))
    began = time.monotonic()
    assert work_lost.jobs_of("yard", CLUSTER) == []
    assert time.monotonic() - began < 10
    assert "what runs on the nodes is not known: node1: no answer within 0 s" in capsys.readouterr().out
