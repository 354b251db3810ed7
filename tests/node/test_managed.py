"""A managed job on its head: one manager at a time, its decisions in the log, the job on the nodes that it wants."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pods import job_of

from fabfile.launchers import Launch
from infra.inventory import Node
from node.job import files, managed
from node.job.diagnosis import STOPPED, Outcome
from node.job.endings import Ending
from node.job.log import Log
from node.job.supervisor import Supervisor
from node.job.time_limit import TimeLimit
from node.slurm import continuation


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    files.write(tmp_path / "spec.json", {"code": "/code/abc"})
    return tmp_path


def order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_dir: Path, **more: Any) -> Any:
    asked = {"who": "ann@laptop (process 1)", "instead_of": [], "seconds": 60.0, "decisions": [], "without": None}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({**asked, **more}) + "\n"))
    assert managed.main([str(run_dir)]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_manager_at_a_time(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = order(monkeypatch, capsys, run_dir)
    assert first == {"code": "/code/abc", "resizing": False, "decisions": []}
    bob = {"who": "bob@desk (process 2)", "decisions": [{"time": 1.0, "text": "mine", "usd": 0.0}], "without": []}
    refused = order(monkeypatch, capsys, run_dir, **bob)
    assert refused["holder"] == "ann@laptop (process 1)" and refused["until"] > time.time() + 50
    assert managed.decisions(run_dir) == [] and managed.wanted(run_dir) is None, "nothing of it is done"
    assert "code" in order(monkeypatch, capsys, run_dir), "it renews its own"
    again = {"who": "ann@laptop (process 3)", "instead_of": ["ann@laptop (process 1)"]}
    assert "code" in order(monkeypatch, capsys, run_dir, **again), "a new process of the same machine takes its place"
    order(monkeypatch, capsys, run_dir, **again, seconds=0)
    assert "code" in order(monkeypatch, capsys, run_dir, **bob), "given up"
    assert managed.wanted(run_dir) == frozenset()


def test_a_lease_ends_by_itself(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(run_dir / "manager.json", {"who": "ann@laptop (process 1)", "until": time.time() - 1})
    assert "code" in order(monkeypatch, capsys, run_dir, who="bob@desk (process 2)")


def test_a_decision_that_is_sent_twice_is_recorded_and_logged_once(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = ({"time": number, "text": f"decision {number}", "usd": 0.5} for number in (1.0, 2.0))
    log: list[str] = []
    relay = managed.Relay(run_dir, log.append)
    relay.look()
    order(monkeypatch, capsys, run_dir, decisions=[one])
    assert order(monkeypatch, capsys, run_dir, decisions=[one, two])["decisions"] == [one, two]
    relay.look()
    relay.look()
    with (run_dir / "managed.jsonl").open("a") as file:
        file.write('{"time": 3.0, "text": "half a')
    relay.look()
    managed.Relay(run_dir, log.append).look()  # that of the next supervisor
    assert log == ["managed: decision 1.0", "managed: decision 2.0"]


def test_a_job_that_the_head_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert order(monkeypatch, capsys, tmp_path / "demo-1") == {"unknown": "demo-1"}


@pytest.mark.acceptance
def test_a_job_goes_on_on_all_its_nodes_with_a_checkpoint_and_without_a_restart(tmp_path: Path) -> None:
    """The real supervisor, with no restart allowed."""
    with job_of(tmp_path, steps=100, pods=2) as job:  # 8 s of them are left when it is asked to go on
        for index in range(2):
            job.start(index)
        job.step(20)
        files.write(job.run_dir / "resize.json", {"without": []})
        files.write(job.run_dir / "managed.jsonl", {"time": 1.0, "text": "back to full size", "usd": 0.0})
        record = job.ends("SUCCEEDED", 90)
        assert record["attempt"] == 2 and record["restarts_left"] == 0, job.everything()
        assert "going on from the last checkpoint on 2 nodes; 0 more allowed" in job.log
        assert "stopped: step" in job.log and not (job.run_dir / "resize.json").exists()


@pytest.mark.acceptance
def test_a_stop_is_a_stop_whatever_the_manager_wants(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=5000, pods=1) as job:
        job.start(0)
        job.step(20)
        files.write(job.run_dir / "stop.json", {"how": "stop"})
        files.write(job.run_dir / "resize.json", {"without": []})
        assert job.ends("CANCELLED")["attempt"] == 1


class Allocated:
    """A job's allocation by Slurm that can be had again: how many nodes it is then."""

    number = "7"
    runs_program = False

    def __init__(self) -> None:
        self.restarts: list[int] = []

    def submit_without(self, lost: Collection[str], restarts: int) -> tuple[str, int]:
        assert lost == ()
        self.restarts.append(restarts)
        return "8", 3

    def forbid_requeue(self) -> None: ...


@pytest.mark.parametrize("left", [0, 2])
def test_with_slurm_the_job_goes_on_in_another_of_slurms_jobs_and_no_restart_is_used(left: int, tmp_path: Path) -> None:
    state = {"id": "a-1", "state": "RUNNING", "reason": "", "slurm": "7", "restarts_left": left, "nodes": ["node1"]}
    files.write(tmp_path / "state.json", state)
    allocated, log = Allocated(), Log(tmp_path / "log", "node1")
    continuation.go_on(tmp_path, cast("Any", allocated), log, (), counts=False)
    after = files.read(tmp_path / "state.json")
    assert (after["state"], after["slurm"], after["restarts_left"]) == ("PENDING", "8", left)
    assert allocated.restarts == [left]
    assert f"restart from the last checkpoint on 3 nodes, as Slurm's job 8; {left} more" in files.text(tmp_path / "log")


@pytest.mark.parametrize(("restarts", "left"), [(1, 0), (0, -1)])
def test_a_job_that_fails_on_the_node_that_it_is_to_leave_leaves_it_with_a_restart(
    restarts: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not again and again on that node, until no restart is left."""
    files.write(tmp_path / "resize.json", {"without": ["node2"]})
    head = Node(name="node1", private_ip="127.0.0.1")
    asked: list[set[str]] = []

    def resized(without: Collection[str], *_: object) -> tuple[Node, ...]:
        asked.append(set(without))
        return (head,)

    own: Any = object.__new__(Supervisor)
    own.run_dir, own._now, own.limit = tmp_path, False, TimeLimit(0.0, 0.0)
    own._decisions, own.log = SimpleNamespace(look=lambda: None), SimpleNamespace(say=lambda _text: None)
    own.machines = SimpleNamespace(resized=resized)
    attempt = SimpleNamespace(stopping="", worlds=None, expiry=SimpleNamespace(taken=set(), cause=None))
    verdicts = [Outcome(1, "node2 cannot be used: No space left on device"), Outcome(0, "done")]
    seen: list[int] = []

    def one_attempt(_launch: Launch, allowed: int) -> tuple[object, Outcome]:
        seen.append(allowed)
        return attempt, verdicts.pop(0)

    monkeypatch.setattr(own, "_attempt", one_attempt)
    monkeypatch.setattr(own, "_record", lambda *_: set())
    monkeypatch.setattr(own, "_ended", lambda verdict, _attempt: seen.append(-verdict.code))
    own._attempts(Launch(id="a-1", nodes=(head,)), restarts)
    assert asked == ([{"node2"}] if restarts else []) and seen[1] == left
    assert (managed.wanted(tmp_path) is None) == bool(restarts)


@pytest.mark.parametrize(("how", "state", "by"), [("", "FAILED", "machines"), ("stop", "CANCELLED", "somebody")])
def test_a_job_that_finds_no_node_to_go_on_with_was_cancelled_by_nobody(
    how: str, state: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped to go on on all nodes; unless a user stops it meanwhile, its manager resumes it."""
    files.write(tmp_path / "resize.json", {"without": []})
    ended: list[Ending] = []

    def resized(*_: object) -> tuple[Node, ...]:
        if how:
            files.write(tmp_path / "stop.json", {"how": how})
        return ()

    own: Any = object.__new__(Supervisor)
    own.run_dir, own._now, own.limit = tmp_path, False, TimeLimit(0.0, 0.0)
    own._decisions, own.log = SimpleNamespace(look=lambda: None), SimpleNamespace(say=lambda _text: None)
    own.machines = SimpleNamespace(resized=resized, asked_to_end=lambda: None)
    attempt = SimpleNamespace(
        stopping="stop", worlds=None, expiry=SimpleNamespace(taken=set(), cause=None, reason="", announced=set)
    )
    monkeypatch.setattr(own, "_attempt", lambda *_: (attempt, Outcome(1, f"{STOPPED}; step 40 is in the checkpoint")))
    monkeypatch.setattr(own, "_record", lambda *_: set())
    monkeypatch.setattr(own, "_over", lambda ending, _code: ended.append(ending))
    own._attempts(Launch(id="a-1", nodes=(Node(name="node1", private_ip="127.0.0.1"),)), 1)
    assert [(one.state, one.by) for one in ended] == [(state, by)]
    assert ended[0].reason.startswith("no node is left to go on with") == (state == "FAILED")
    assert "step 40 is in the checkpoint" in ended[0].reason


@pytest.mark.parametrize(
    ("until", "is_default", "goes_on"), [(60.0, False, False), (-1.0, False, True), (-1.0, True, False)]
)
def test_restarts_of_a_managed_job_and_by_default_are_not_for_what_its_program_would_do_again(
    until: float, is_default: bool, goes_on: bool, tmp_path: Path
) -> None:
    files.write(tmp_path / "manager.json", {"who": "ann@laptop", "until": time.time() + until})
    own: Any = object.__new__(Supervisor)
    own.run_dir, own.spec = tmp_path, SimpleNamespace(after_losses_only=is_default)
    attempt: Any = SimpleNamespace(stopping="")
    nan = Outcome(1, "rank 0 on node1 ended with exit code 3: step 2: the loss is nan", by_program=True)
    assert own._may_go_on(nan, attempt) is goes_on
    assert own._may_go_on(Outcome(1, "node2 (rank 1) is cut off: no word for 6 s"), attempt), "the machines' fault"
