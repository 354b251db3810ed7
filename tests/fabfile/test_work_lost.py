"""What runs on nodes that are about to go is said first; a head that does not answer keeps nobody waiting."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import played_stack
import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile import question, targets
from fabfile.backends.base import JobRecord
from fabfile.backends.ssh import head
from fabfile.backends.ssh.backend import SshBackend
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import SshError
from fabfile.stacks import capacity, pulumi_cli, work_lost
from fabfile.verbs import destroy as destroying
from fabfile.verbs import up as updating

RECORDS = [
    {"id": "demo-1", "state": "SUCCEEDED", "nodes": ["node1", "node2", "node3"], "created": 1.0},
    {"id": "demo-2", "state": "RUNNING", "nodes": ["node1", "node2"], "created": 2.0},
]
JOBS = [JobRecord.from_record(record) for record in RECORDS]


def inventory_of(count: int) -> str:
    nodes = [{"name": f"node{n}", "private_ip": f"127.0.0.{n}"} for n in range(1, count + 1)]
    return json.dumps({"schema": 1, "kind": "ssh", "name": "yard", "ssh_user": "root", "nodes": nodes})


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulumi_cli, "stack_output", lambda _stack: inventory_of(3))
    monkeypatch.setattr(work_lost, "jobs_of", lambda _backend: JOBS)


def test_a_destroy_names_the_job_that_runs_and_the_runs(up: None, capsys: pytest.CaptureFixture[str]) -> None:
    work_lost.say_of_destroy("yard")
    job, runs = capsys.readouterr().out.splitlines()
    assert job == "job demo-2 is RUNNING on node1, node2: it ends with them"
    assert "demo-1, demo-2" in runs and "fab fetch ID" in runs


@pytest.mark.parametrize(("gone", "lines"), [(["node3"], 2), (["node2"], 3), (["node1"], 4), ([], 1)])
def test_an_up_names_what_its_nodes_take_with_them(
    gone: list[str], lines: int, up: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs are on the head's disk: another node's going takes none."""
    monkeypatch.setattr(work_lost, "nodes_that_go", lambda _stack, _cloud: gone)
    work_lost.say_of_up("yard", "")
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_a_node_takes_the_run_of_a_job_that_had_no_head_with_it(
    up: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(JOBS[0], id="demo-3", nodes=("node3",), files_on="node3")
    monkeypatch.setattr(work_lost, "jobs_of", lambda _backend: [*JOBS, other])
    monkeypatch.setattr(work_lost, "nodes_that_go", lambda _stack, _cloud: ["node3"])
    work_lost.say_of_up("yard", "")
    (_, _, runs) = capsys.readouterr().out.splitlines()
    assert runs.startswith("runs on their disks go with them: demo-3  ")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a verb had printed when it asked, or when Pulumi's `up` did for it; the answer is no."""
    before: list[str] = []

    def no(*_: object) -> str:
        before.append(capsys.readouterr().out)
        return "n"

    def declined(*_: object) -> capacity.Update:
        no()
        return capacity.Update(1, False)

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(question, "input", no, raising=False)
    monkeypatch.setattr(updating, "pulumi_up", declined)
    return before


@pytest.mark.parametrize("engine", ["pulumi", "embedded"])
def test_up_says_what_is_lost_before_it_asks(
    engine: str, up: None, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Preview(monkeypatch, engine, ANSWERS[engine])
    monkeypatch.setattr(updating, "checked", lambda _stack: {"cloud": "", "kubernetes": False})
    monkeypatch.setattr(pulumi_cli, "run", lambda *_words: None)
    monkeypatch.setattr(pulumi_cli, "follow", lambda _argv: pytest.fail("it went on"))
    with pytest.raises(Exit) as no:
        updating.up(Context(), stack="yard")
    assert no.value.code == 1
    (shown,) = asked
    assert "this `up` removes or replaces node2, node3\n" in shown
    assert "job demo-2 is RUNNING on node1, node2: it ends with them\n" in shown
    monkeypatch.setattr(work_lost, "nodes_that_go", lambda *_: ["node1"])
    with pytest.raises(Exit):
        updating.up(Context(), stack="yard")
    assert "runs on their disks go with them: demo-1, demo-2  (fab fetch" in asked[1]


def test_destroy_says_what_is_lost_before_it_asks(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = played_stack.Played(monkeypatch)
    monkeypatch.setattr(pulumi_cli, "stack_output", lambda _stack: inventory_of(3))
    monkeypatch.setattr(work_lost, "jobs_of", lambda _backend: JOBS)
    with pytest.raises(Exit, match="nothing was changed") as no:
        destroying.destroy(Context(), stack="yard")
    assert no.value.code == 1 and there.ran == []
    (shown,) = asked
    assert "job demo-2 is RUNNING on node1, node2: it ends with them\n" in shown
    assert "runs on their disks go with them: demo-1, demo-2  (fab fetch" in shown


class Preview:
    """Plays `pulumi_cli.ask`: what a preview answers, and how it was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: str, answer: str | Exit) -> None:
        self.answer, self.argv, self.environment = answer, [""], {"": ""}
        monkeypatch.setattr(pulumi_cli, "has_pulumi", lambda: engine == "pulumi")
        monkeypatch.setattr(pulumi_cli, "ask", self.ask)

    def ask(self, argv: Sequence[str], **more: str) -> str:
        self.argv, self.environment = list(argv), more
        if isinstance(self.answer, Exit):
            raise self.answer
        return self.answer


STEPS = [("node1", "same"), ("node2", "delete-replaced"), ("node3", "delete"), ("network", "delete")]
ANSWERS = {
    "pulumi": json.dumps({"steps": [{"urn": f"urn:x::{name}", "op": op} for name, op in STEPS]}),
    "embedded": "  node2: +- replace (image)\n  node3: - delete\n  node4: + create\n  2 changes\n",
}


@pytest.mark.parametrize("engine", ["pulumi", "embedded"])
def test_the_nodes_that_go_are_read_from_the_preview(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Preview(monkeypatch, engine, ANSWERS[engine])
    assert work_lost.nodes_that_go("yard", "") == ["node2", "node3"]


@pytest.mark.parametrize("cloud", ["", "aws"])
def test_the_preview_is_that_of_the_up_after_it(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at what is there, as `up` does, and fetches no plugin that a local stack has no use for."""
    played = Preview(monkeypatch, "pulumi", ANSWERS["pulumi"])
    work_lost.nodes_that_go("yard", cloud)
    assert "--refresh" in played.argv
    wanted = {} if cloud else {"PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true"}
    assert played.environment == wanted


@pytest.mark.parametrize("answer", [Exit("no such type\nand more", code=1), "not JSON", '{"steps": [{}]}'])
def test_a_preview_that_fails_is_said(
    answer: str | Exit, up: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Preview(monkeypatch, "pulumi", answer)
    work_lost.say_of_up("yard", "")
    looking, failed = capsys.readouterr().out.splitlines()
    assert looking == "checking which nodes this `up` removes or replaces (a preview)"
    assert failed.startswith("which nodes it removes or replaces is not known: ")
    assert "no such type and more" in failed or not isinstance(answer, Exit)


def test_the_variables_reach_the_command() -> None:
    assert pulumi_cli.ask(
        ["sh", "-c", "echo $PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"], **pulumi_cli.plugins("")
    ) == ("true\n")


def test_a_head_without_jobs_needs_no_preview(
    up: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(work_lost, "jobs_of", lambda *_: [])
    monkeypatch.setattr(work_lost, "nodes_that_go", lambda *_: pytest.fail("a preview"))
    work_lost.say_of_up("yard", "")
    assert capsys.readouterr().out == ""


def test_the_nodes_that_go_are_named_where_the_head_does_not_answer(
    up: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(work_lost, "jobs_of", lambda *_: None)
    monkeypatch.setattr(work_lost, "nodes_that_go", lambda *_: ["node3"])
    work_lost.say_of_up("yard", "")
    assert "this `up` removes or replaces node3\n" in capsys.readouterr().out


def test_a_cluster_that_is_not_up_has_nothing_to_lose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_up(_stack: str) -> Any:
        raise Exit("not up", code=2)

    monkeypatch.setattr(pulumi_cli, "stack_output", not_up)
    work_lost.say_of_destroy("yard")
    work_lost.say_of_up("yard", "")
    assert capsys.readouterr().out == ""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SshBackend:
    """A cluster in hand: nobody may ask the stack for its inventory again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(pulumi_cli, "stack_output", lambda _stack: pytest.fail("asked again"))
    return SshBackend(targets.parse(inventory_of(2), "stack yard"))


@pytest.mark.parametrize(("reached", "expected"), [(False, "not reached"), (True, "reached, but no answer")])
def test_a_head_that_does_not_answer_is_said_and_waited_for_briefly(
    reached: bool,
    expected: str,
    cluster: SshBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(work_lost, "CONNECT_S", 1.0)
    monkeypatch.setattr(work_lost, "ANSWER_S", 1.0)
    monkeypatch.setattr(Fleet, "connection", lambda *_: None if reached else time.sleep(30))
    monkeypatch.setattr(head, "deploy", lambda *_: time.sleep(30))
    began = time.monotonic()
    assert work_lost.jobs_of(cluster) is None
    assert time.monotonic() - began < 10
    assert f"what runs on the nodes is not known: node1: {expected} within 1 s" in capsys.readouterr().out


def test_the_time_of_a_slow_way_to_the_head_is_not_taken_from_its_answer(
    cluster: SshBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_lost, "CONNECT_S", 10.0)
    monkeypatch.setattr(work_lost, "ANSWER_S", 2.0)
    monkeypatch.setattr(Fleet, "connection", lambda *_: time.sleep(3))
    monkeypatch.setattr(head.Head, "__init__", lambda *_: None)
    monkeypatch.setattr(head.Head, "ask", lambda *_: RECORDS)
    assert work_lost.jobs_of(cluster) == JOBS


def test_a_refusal_of_the_head_is_passed_on(
    cluster: SshBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> Any:
        raise SshError("node1 (127.0.0.1:22): no SSH:\nclosed")

    monkeypatch.setattr(Fleet, "connection", refuse)
    assert work_lost.jobs_of(cluster) is None
    assert capsys.readouterr().out == "what runs on the nodes is not known: node1 (127.0.0.1:22): no SSH: closed\n"


def test_an_inventory_that_cannot_be_used_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pulumi_cli, "stack_output", lambda _stack: '{"schema": 99}')
    work_lost.say_of_destroy("yard")
    assert capsys.readouterr().out.startswith("what runs on the nodes is not known: stack yard: schema 99 is newer")
