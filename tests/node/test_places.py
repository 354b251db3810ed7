"""Which nodes a job over SSH gets, and what its record says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fabfile.launchers import KEEPERS
from infra.inventory import Node, SshCluster
from node.job import cleanup, files, job_table, places, submit
from node.job.log import Log
from node.job.machines import OwnMachines
from node.job.spec import JobSpec

NAMES = ("node1", "node2", "node3")
CLUSTER = SshCluster(name="yard", nodes=tuple(Node(name=name, private_ip=f"10.0.0.{name[-1]}") for name in NAMES))


def wanting(count: int, **changes: Any) -> JobSpec:
    spec = JobSpec(name="a", job="", launcher="mpirun", cluster=CLUSTER, timeout=60.0, runs="runs", code="/code")
    return replace(spec, count=count, **changes)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that records a job whose supervisor runs."""
    monkeypatch.setattr(job_table, "is_active", lambda _job: True)

    def write(job: str, **changes: Any) -> Path:
        (tmp_path / job).mkdir(exist_ok=True)
        state = {"id": job, "state": "RUNNING", "reason": "", "nodes": [], "created": 0.0, "queued": False}
        files.write(tmp_path / job / "state.json", {**state, **changes})
        return tmp_path / job

    return write


@pytest.mark.parametrize(
    ("count", "taken", "home", "chosen"),
    [
        (1, (), "", ["node1"]),
        (1, ("node1",), "", ["node2"]),
        (2, ("node2",), "", ["node1", "node3"]),
        (2, ("node1", "node2"), "", []),
        (1, (), "node2", ["node2"]),
        (2, (), "node3", ["node3", "node1"]),
        (1, ("node2",), "node2", []),
        (0, (), "", list(NAMES)),
        (0, ("node3",), "", []),
    ],
)
def test_the_first_free_nodes_and_before_them_the_one_with_the_files(
    count: int, taken: tuple[str, ...], home: str, chosen: list[str]
) -> None:
    assert places.choose(wanting(count), taken, home) == chosen


def test_a_program_gets_only_nodes_that_have_its_directory() -> None:
    spec = wanting(1, among=("node2", "node3"))
    assert [places.choose(spec, taken, "") for taken in ((), ("node2",), ("node2", "node3"))] == [
        ["node2"],
        ["node3"],
        [],
    ]
    assert places.choose(replace(spec, count=2), (), "node3") == ["node3", "node2"]
    assert places.waiting(spec)["among"] == ["node2", "node3"]


def test_what_others_have_and_wait_for_is_taken(tmp_path: Path, record: Callable[..., Path]) -> None:
    record("a-1", nodes=["node2"])
    record("a-2", state="SUCCEEDED", nodes=["node1"])
    assert places.taken(tmp_path, wanting(1)) == {"node2": "a-1"}
    record("a-3", state="PENDING", queued=True, among=list(NAMES))
    assert places.taken(tmp_path, wanting(1)) == {"node2": "a-1", "node1": "a-3", "node3": "a-3"}
    assert places.taken(tmp_path, wanting(1), "a-3") == {"node2": "a-1"}
    assert places.taken(tmp_path, wanting(1, among=("node1", "node2")), "a-3") == {"node2": "a-1"}


@pytest.mark.parametrize(
    ("changes", "before", "node"),
    [
        ({}, {"started": 1.0, "files_on": "node2"}, "node2"),
        ({}, {"started": 1.0, "files_on": ""}, "node1"),
        ({}, {}, "node1"),  # its record is damaged
        ({}, {"started": None, "files_on": ""}, ""),
        ({"resume": ""}, {"started": 1.0, "files_on": ""}, ""),
        ({"mirrored": True}, {}, ""),
        ({"cluster": replace(CLUSTER, shared_dir="/fsx")}, {"started": 1.0, "files_on": ""}, ""),
    ],
)
def test_a_job_goes_on_where_its_files_are(changes: dict[str, Any], before: dict[str, Any], node: str) -> None:
    assert places.home(replace(wanting(1, resume="a-1"), **changes), before) == node


def test_a_job_does_not_go_on_beside_a_busy_node_with_its_files(
    tmp_path: Path, record: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "busy_with", lambda _job: [])
    record("a-1", state="FAILED", started=1.0, nodes=["node1"])
    record("a-2", nodes=["node1"])
    assert submit._refused(tmp_path, wanting(1)) == ""
    refused = submit._refused(tmp_path, wanting(1, resume="a-1"))
    assert refused == "node1: busy with a-2, and a-1 has its files there"
    assert submit._refused(tmp_path, wanting(2, among=("node1", "node3"))) == "node1: busy with a-2"


def test_what_resuming_needs_is_known_of_a_job_that_was_resumed_and_only_waited(
    tmp_path: Path, record: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = {"started": 1.0, "files_on": "node2", "ran_on": ["node2", "node3"]}
    waits = submit._pending(tmp_path, wanting(2, queue=True, resume="a-1"), "a-1", before)
    files.write(record("a-1") / "state.json", waits)
    job_table.show([str(tmp_path), "a-1"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["files_on"], shown["on"], waits["nodes"]) == ("node2", ["node2", "node3"], [])


def test_a_job_without_the_head_has_its_files_and_its_ranks_elsewhere() -> None:
    spec = wanting(2)
    assert places.given(spec, ["node2", "node3"])["files_on"] == "node2"
    assert places.given(spec, ["node1", "node3"])["files_on"] == ""
    shared = replace(spec, cluster=replace(CLUSTER, shared_dir="/fsx"))
    assert places.given(shared, ["node2", "node3"])["files_on"] == ""
    assert places.launcher(spec, CLUSTER.nodes[1:]) == KEEPERS and places.launcher(spec, CLUSTER.nodes) == "mpirun"
    assert places.launcher(replace(spec, launcher="slurm"), CLUSTER.nodes[1:]) == "slurm"


def test_a_job_waits_until_one_of_the_others_is_over(
    tmp_path: Path, record: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(NAMES, 1):
        record(f"a-{number}", nodes=[name])
    run_dir = record("a-4", state="PENDING", queued=True, among=list(NAMES))
    said: list[str] = []
    monkeypatch.setattr("node.job.machines.time.sleep", lambda _seconds: record("a-3", state="FAILED", nodes=["node3"]))
    monkeypatch.setattr(Log, "say", lambda _log, line: said.append(line))
    machines = OwnMachines(wanting(1, queue=True, id="a-4"), run_dir)
    machines.wait(lambda: "", Log(run_dir / "log", "node1"))
    assert said == ["waiting for a-1 or a-2 or a-3"]
    assert [node.name for node in machines.nodes] == ["node3"] and machines.own_address == "10.0.0.1"
    state = files.read(run_dir / "state.json")
    assert (state["nodes"], state["files_on"], state["queued"]) == (["node3"], "node3", False)
    assert places.taken(tmp_path, wanting(1)) == {"node1": "a-1", "node2": "a-2", "node3": "a-4"}
    assert [node.name for node in machines.resized({"node1"}, lambda: "", Log(run_dir / "log", "node1"))] == ["node3"]
