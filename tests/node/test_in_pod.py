"""What the programs of a job leave alone in a pod: it has no systemd, no sudo, and no machine of its own to pin to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from polling import until

from fabfile.launchers import nodes_to_text
from infra.inventory import Node
from node.job import cleanup, cores, rank_wrapper
from node.job.own_ranks import OwnRanks
from node.job.supervisor import _since_start
from node.kubernetes import records
from node.kubernetes.agent import Agent
from node.kubernetes.identity import Address, Pod


@pytest.fixture
def in_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod, in which neither systemctl nor sudo is to be found."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("TRAINYARD_POD", f"pod-{tmp_path.name}")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.mark.usefixtures("in_pod")
def test_a_jobs_processes_are_those_of_this_pod_with_its_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def sleeper(**environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, **environment}
        )

    mine = [sleeper(TRAINYARD_JOB="a-1") for _ in range(2)]
    others = [sleeper(), sleeper(TRAINYARD_JOB="a-2"), sleeper(TRAINYARD_JOB="a-1", TRAINYARD_POD="another")]
    try:
        until(lambda: len(cleanup.processes("a-1")) == 2)
        assert cleanup.busy_with("") == []
        assert cleanup.main(["a-1"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert len(told["found"]) == 2 and told["alive"] == []
        assert [each.wait(5) for each in mine] == [-signal.SIGKILL] * 2
        assert [each.poll() for each in others] == [None] * 3
    finally:
        for each in (*mine, *others):
            each.kill()
            each.wait()


@pytest.mark.parametrize(("has", "pinned"), [(1, False), (2, True)])
def test_ranks_are_pinned_only_where_the_pod_has_the_machine_for_itself(
    has: int, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the `local` stack the pods of all nodes see the same processors."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("TRAINYARD_COLLECTIVES", "gloo")
    monkeypatch.setenv("TRAINYARD_JOB", "a-1")
    monkeypatch.setattr(cores, "topology", lambda: [(0, 0, 0), (1, 1, 0)])
    monkeypatch.setattr(cores, "is_shared", lambda: False)
    chosen: list[Any] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, found: chosen.append(found))
    nodes = [Node(name="machine-0", private_ip="127.0.0.1", cores_per_slot=has)]
    place = rank_wrapper.RankPlacement({"RANK": "0", "TRAINYARD_NODES": nodes_to_text(nodes)})
    environment = rank_wrapper.from_node(place, lambda _line: None)
    assert bool(chosen) is pinned and environment["TRAINYARD_COLLECTIVES"] == "gloo"


def test_ranks_end_with_the_program_that_has_started_them(tmp_path: Path) -> None:
    """A keeper that is killed can say nothing to them."""
    code = (
        "import pathlib, sys, time; from node.job.own_ranks import OwnRanks\n"
        "OwnRanks('machine-0', pathlib.Path(sys.argv[2]), lambda event: None).start(sys.argv[1])\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    nodes = nodes_to_text([Node(name="machine-0", private_ip="127.0.0.1", slots=2)])
    order = {"argv": ["sleep", "60"], "environment": {"TRAINYARD_NODES": nodes, "TRAINYARD_JOB": f"t-{os.getpid()}"}}
    root = Path(__file__).resolve().parents[2]
    argv = [sys.executable, "-c", code, json.dumps(order), str(tmp_path)]
    keeper = subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE)
    assert keeper.stdout and keeper.stdout.readline() == b"ready\n"
    assert len(cleanup.processes(f"t-{os.getpid()}")) == 2
    keeper.kill()
    keeper.communicate()
    until(lambda: cleanup.processes(f"t-{os.getpid()}") == [], 5)


def test_only_this_nodes_ranks_are_started_and_one_without_a_record_is_told(tmp_path: Path) -> None:
    nodes = nodes_to_text([Node(name=f"m{i}", private_ip="127.0.0.1", slots=2) for i in (1, 2)])
    order = {"argv": ["sh", "-c", "echo $RANK $LOCAL_RANK; exit 4"], "environment": {"TRAINYARD_NODES": nodes}}
    heard: list[dict[str, Any]] = []
    started = OwnRanks("m2", tmp_path, heard.append)
    assert started.start(json.dumps(order)) == [2, 3]
    until(lambda: len(heard) == 2)
    assert sorted(event["text"] for event in heard) == ["2 0", "3 1"]
    (tmp_path / "rank-3.json").write_text("{}")
    told: list[dict[str, Any]] = []
    until(lambda: told.extend(started.failed()) or not started._wrappers)
    assert told == [{"event": "rank", "rank": 2, "state": "exited", "code": 4, "last": "2 0"}]


def test_the_time_of_a_lost_supervisor_counts_and_a_pause_does_not() -> None:
    now = time.time()
    assert 89 < _since_start({"state": "RUNNING", "started": now - 100, "paused": 10.0}) < 92
    assert _since_start({"state": "PENDING", "started": now - 100, "paused": 0.0}) == 0.0


def test_a_supervisors_address_is_for_its_owner_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    pod = Pod(0, "demo-1-master-0", "fd00::1", "m1", "10.0.0.1")
    Address("fd00::1", 4711, "t" * 64, pod).write(tmp_path)
    assert (tmp_path / "supervisor.json").stat().st_mode & 0o777 == 0o600
    assert Address.read(tmp_path) == Address("fd00::1", 4711, "t" * 64, pod)
    for text in (
        "",
        "{",
        "[]",
        '{"address": "a", "port": "x", "token": "t"}',
        '{"address": "a", "port": 1, "token": "t"}',
    ):
        (tmp_path / "supervisor.json").write_text(text)
        assert Address.read(tmp_path) is None


def test_the_first_pod_does_not_wait_for_the_supervisor_of_the_one_before_it(tmp_path: Path) -> None:
    before = Pod(0, "demo-1-master-0", "10.1.0.1", "m1", "10.0.0.1")
    Address("10.1.0.1", 4711, "t" * 64, before).write(tmp_path)
    again, worker = Pod(0, "demo-1-master-0", "10.1.0.9", "m2", "10.0.0.2"), Pod(1, "w", "10.1.0.2", "m3", "10.0.0.3")
    assert Agent(tmp_path, again, "launch", print)._address() is None
    assert Agent(tmp_path, worker, "launch", print)._address() == Address.read(tmp_path)
    records.keep(tmp_path, {"id": "demo-1", "state": "FAILED"})
    assert Agent(tmp_path, worker, "launch", print)._address() is None, "the job is resumed: that supervisor is gone"


def test_a_shared_volume_that_does_not_answer_for_a_moment_is_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the pod would end with exit code 1, which is the job's end."""
    (tmp_path / "state.json").mkdir()  # reading it fails, as it does on a volume that has gone
    codes: list[int] = []
    agent = Agent(tmp_path, Pod(1, "w", "10.1.0.2", "m3", "10.0.0.3"), "launch", print)
    thread = threading.Thread(target=lambda: codes.append(agent.run()))
    thread.start()
    time.sleep(0.5)
    (tmp_path / "state.json").rmdir()
    (tmp_path / "state.json").write_text('{"state": "FAILED"}')
    thread.join(5)
    assert codes == [0] and capsys.readouterr().err.count("Is a directory") == 1


@pytest.mark.usefixtures("in_pod")
def test_a_pod_that_is_ended_while_its_keeper_starts_tells_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would ask for a checkpoint, and the pod would be killed 45 s later."""
    program = tmp_path / "launch"
    program.write_text("import time; time.sleep(60)")
    agent = Agent(tmp_path, Pod(1, "w", "10.1.0.2", "m3", "10.0.0.3"), str(program), print)
    start = subprocess.Popen

    def started(*args: Any, **options: Any) -> Any:
        child = start(*args, **options)
        agent.leave()
        return child

    monkeypatch.setattr("node.kubernetes.agent.subprocess.Popen", started)
    ours, theirs = socket.socketpair()
    began = time.monotonic()
    with ours:
        agent._keep(theirs)
    assert time.monotonic() - began < 30
