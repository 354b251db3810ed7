"""A job's record beside Slurm's queue: which is believed, and the end of a job that nobody recorded."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from played_slurm import Slurm, record, row
from small_cluster import cluster

from node import status
from node.job import endings, files, job_table, log
from node.job.diagnosis import Outcome
from node.job.endings import Ending
from node.job.supervisor import Supervisor
from node.slurm import others, records
from node.slurm.allocation import Allocation
from node.slurm.queue import Fate

FAILED_BY_KILL = "JobName=a-1 JobState=FAILED Reason=None Restarts=0 ExitCode=0:9 BatchHost=node2 Comment=trainyard:a-1"


def test_a_job_that_slurm_runs_is_as_its_record_says(tmp_path: Path, slurm: Slurm) -> None:
    run_dir = record(tmp_path / "runs")
    slurm.queue(row())
    assert job_table.state_of(run_dir)["state"] == "RUNNING"


def test_a_job_that_slurm_has_put_back_waits(tmp_path: Path, slurm: Slurm) -> None:
    run_dir = record(tmp_path / "runs")
    slurm.queue(row("PENDING", "Resources"))
    state = job_table.state_of(run_dir)
    assert (state["state"], state["reason"], state["queued"]) == ("PENDING", "Slurm: Resources", True)
    assert slurm.asked("scontrol") == ""


def test_a_job_held_back_for_its_credential_is_let_go(tmp_path: Path, slurm: Slurm) -> None:
    run_dir = record(tmp_path / "runs")
    slurm.queue(row("PENDING", "BeginTime"))
    slurm.job("ok")
    job_table.state_of(run_dir)
    assert slurm.asked("scontrol") == "update jobid=7 starttime=now\n"


def test_the_number_alone_is_not_the_job(tmp_path: Path, slurm: Slurm) -> None:
    """They begin at 1 again in a new cluster, which may find our files in a shared folder that outlived the old one."""
    run_dir = record(tmp_path / "runs")
    slurm.queue(row(job="b-9"))
    assert job_table.state_of(run_dir)["state"] == "FAILED"


def test_an_end_that_nobody_recorded_is_recorded_once_with_its_reason(tmp_path: Path, slurm: Slurm) -> None:
    run_dir = record(tmp_path / "runs")
    slurm.job(FAILED_BY_KILL)
    state = job_table.state_of(run_dir)
    reason = "its supervisor on node2 was killed by SIGKILL"
    assert (state["state"], state["reason"], state["exit_code"]) == ("FAILED", reason, 1)
    assert files.read(run_dir / "state.json") == state and time.time() - state["ended"] < 60
    slurm.job("")  # Slurm forgets it after some minutes
    assert job_table.state_of(run_dir)["reason"] == reason
    lines = [line[3] for line in log.read(run_dir / "log", 0, log.Wanted("", 0.0))[0]]
    assert lines == [f"error: {reason}", f"a-1 FAILED: {reason}"]


def test_an_end_is_told_although_there_is_no_room_to_record_it(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = record(tmp_path / "runs")
    slurm.job("JobName=a-1 JobState=FAILED Reason=None Restarts=0 ExitCode=120:0 BatchHost=node2 Comment=trainyard:a-1")
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=0))
        full.setattr(files, "_FULL_DISK_SECONDS", 0.0)
        full.setattr(os, "fsync", _no_room)
        told = job_table.state_of(run_dir)
    assert told["state"] == "FAILED" and told["reason"].endswith(f"; the disk with {run_dir} is full"), told["reason"]
    assert files.read(run_dir / "state.json")["state"] == "RUNNING" and not list(run_dir.glob("state.json.*"))
    there = job_table.state_of(run_dir)
    assert there["state"] == "FAILED" and "is full" not in there["reason"]
    assert files.read(run_dir / "state.json") == there


def test_a_record_that_cannot_be_written_for_another_reason_is_an_error(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = record(tmp_path / "runs")
    monkeypatch.setattr(files, "_FULL_DISK_SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", _no_room)
    with pytest.raises(OSError, match=rf"No space left on device: '{re.escape(str(run_dir / 'state.json'))}'"):
        job_table.state_of(run_dir)


def _no_room(_file: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as of write, without a name


def test_a_job_submitted_after_the_queue_was_read_has_not_ended(tmp_path: Path, slurm: Slurm) -> None:
    run_dir = record(tmp_path / "runs")
    slurm.job(FAILED_BY_KILL.replace("JobState=FAILED", "JobState=PENDING"))
    assert job_table.state_of(run_dir)["state"] == "RUNNING"


def test_while_slurm_does_not_answer_nothing_is_judged(tmp_path: Path, slurm: Slurm) -> None:
    record(tmp_path / "runs")
    slurm.down()
    assert [state["state"] for state in job_table.every(tmp_path / "runs")] == ["RUNNING"]


def test_the_queue_is_asked_once_for_all_jobs(tmp_path: Path, slurm: Slurm) -> None:
    rows = []
    for number in range(1, 6):
        record(tmp_path / "runs", f"a-{number}", slurm=str(number))
        rows.append(row(number=str(number), job=f"a-{number}"))
    slurm.queue(*rows)
    assert {state["state"] for state in job_table.every(tmp_path / "runs")} == {"RUNNING"}
    assert len(slurm.asked("squeue").splitlines()) == 1


@pytest.mark.parametrize(
    ("fate", "state", "reason", "by"),
    [
        (None, "FAILED", "Slurm does not know it any more", endings.MACHINES),
        (
            Fate("CANCELLED", "node1", 0, 15, 0, "None"),
            "CANCELLED",
            r"cancelled in Slurm \(scancel\)",
            endings.SOMEBODY,
        ),
        (Fate("TIMEOUT", "node1", 0, 15, 0, "TimeLimit"), "FAILED", "Slurm's time limit", endings.SOMEBODY),
        (Fate("NODE_FAIL", "node2", 0, 0, 0, "NodeDown"), "FAILED", "its first node, node2, failed", endings.MACHINES),
        (
            Fate("FAILED", "node2", 3, 0, 0, "NonZeroExitCode"),
            "FAILED",
            "its supervisor on node2 ended with exit code 3",
            endings.MACHINES,
        ),
    ],
)
def test_why_a_job_ended_without_a_record(fate: Fate | None, state: str, reason: str, by: str) -> None:
    found = records.why(fate)
    assert (found.state, found.by) == (state, by) and re.match(reason, found.reason)


def allocation() -> Allocation:
    """That of a-1, on two nodes, without Slurm's environment."""
    ours, spec = object.__new__(Allocation), SimpleNamespace(id="a-1", cluster=cluster(2))
    ours.__dict__ = {"_spec": spec, "_parent": os.getppid(), "number": "7", "requeued": 0, "nodes": spec.cluster.nodes}
    return ours


def test_slurm_is_told_of_dead_nodes_by_its_administrator_and_why_it_does_not_take_it(slurm: Slurm) -> None:
    """Only root, or SlurmUser, may set a node's state; sudo must not ask for a password that nobody can give."""
    slurm.program("sudo")
    assert allocation().tell_down(("node3", "node2")) == ""
    words = ["-n", "scontrol", "update", "nodename=node2,node3", "state=down", "reason=trainyard: no answer to a-1"]
    assert slurm.asked("sudo").splitlines() == words
    slurm.program("sudo", "echo 'slurm_update error: Invalid node name specified' >&2; exit 1")
    assert allocation().tell_down({"node4"}) == "Invalid node name specified"


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        ("JobState=RUNNING Reason=None Restarts=1", "PENDING", "requeued by Slurm"),
        ("JobState=COMPLETING Reason=TimeLimit Restarts=0", "FAILED", "Slurm's time limit ended it"),
        (
            "JobState=COMPLETING Reason=NodeDown Restarts=0",
            "FAILED",
            "Slurm takes node2 for dead, as its slurmd does not answer",
        ),
        ("JobState=RUNNING Reason=None Restarts=0", "CANCELLED", "its processes were sent SIGTERM, and not by Slurm"),
        ("JobState=COMPLETING Reason=None Restarts=0", "CANCELLED", "cancelled in Slurm (scancel)"),
    ],
)
def test_why_slurm_ends_a_job(slurm: Slurm, text: str, state: str, reason: str) -> None:
    slurm.job(f"JobName=a-1 Comment=trainyard:a-1 ExitCode=0:0 BatchHost=node1 {text}")
    slurm.sinfo("node1|allocated|nodes*", "node2|down*|nodes*", "node3|down|nodes*")
    ours = allocation()
    by = endings.SOMEBODY if "limit" in reason or "scancel" in reason else endings.MACHINES
    assert ours.ended_by() == Ending(state, reason, by)
    assert ours.taken_for_dead() == (reason if "NodeDown" in text else "")


@pytest.mark.parametrize("slurms", [False, True])
def test_ranks_that_somebody_else_has_stopped_are_no_success(slurms: bool) -> None:
    """As Slurm does when it takes a node for dead, and cannot reach the supervisor there."""
    told: list[tuple[Ending, int]] = []
    down = Ending("FAILED", "Slurm takes node2 for dead")
    machines = SimpleNamespace(asked_to_end=lambda: down if slurms else None)
    who: Any = SimpleNamespace(machines=machines, _over=lambda *args: told.append(args))
    stopped = "stopped: step 8 is in the checkpoint"
    Supervisor._ended(who, Outcome(0, stopped), cast("Any", SimpleNamespace(stopping="")))
    said = down if slurms else Ending("CANCELLED", "its ranks were sent SIGTERM")
    assert told == [(Ending(said.state, f"{said.reason}; {stopped}"), 1)], "nobody has wished it: a manager resumes it"


@pytest.mark.parametrize("down", ["", "Slurm takes node2 for dead"])
def test_a_node_that_slurm_takes_for_dead_is_named_before_what_follows_from_it(down: str) -> None:
    told: list[tuple[Ending, int]] = []
    who: Any = SimpleNamespace(machines=SimpleNamespace(why_failed=lambda: down), _over=lambda *args: told.append(args))
    cut_off = "node1 (rank 0) is cut off: its keeper ended"
    Supervisor._ended(who, Outcome(1, cut_off), cast("Any", SimpleNamespace(stopping="")))
    assert told == [(Ending("FAILED", down or cut_off), 1)]


def test_what_others_have_submitted_is_listed_with_them(
    tmp_path: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "runs")
    slurm.queue(row(), "9|PENDING|alice|3||1|N/A|Resources|(null)|hers", row(number="11", user="mallory"))
    others.main([str(tmp_path / "runs")])
    found = json.loads(capsys.readouterr().out)["jobs"]
    assert [(job["id"], job["user"]) for job in found] == [("9", "alice"), ("11", "mallory")], "our comment, her job"
    slurm.down()
    others.main([str(tmp_path / "runs")])
    assert json.loads(capsys.readouterr().out) == {"refused": "Slurm: Unable to contact slurm controller"}


def test_a_node_is_not_busy_with_a_job_whose_keeper_slurm_has_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "STATE", tmp_path)
    monkeypatch.setattr(status, "BOOTED", tmp_path / "none")
    gone = subprocess.Popen(["true"])
    gone.wait()
    for keeper, shown in ((os.getpid(), "a-1"), (gone.pid, None)):
        files.write(tmp_path / "job.json", {"id": "a-1", "state": "RUNNING", "keeper": keeper})
        assert (status.job() or {}).get("id") == shown


def test_machines_that_slurm_has_powered_down_are_not_billed(slurm: Slurm) -> None:
    rows = ("p3dn-dy-big-1|allocated|p3dn*", "p3dn-dy-big-2|idle~|p3dn*", "p3dn-dy-big-3|allocated#|p3dn*")
    slurm.sinfo(*rows, "p3dn-dy-big-4|idle%|p3dn*")
    assert status.running("p3dn") == 3, "those that start and stop cost, too"
    slurm.down()
    assert status.running("p3dn") is None
