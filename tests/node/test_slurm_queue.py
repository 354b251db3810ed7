"""What Slurm's commands print, read: its queue, its nodes, how a job ended, and who is in a job's way."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cluster import cluster

from node.job.spec import JobSpec
from node.slurm import queue, submission
from node.slurm.queue import Fate, QueuedJob, SlurmError

PENDING = "13|PENDING|alice|3||1795340200|N/A|Resources|(null)|her job | with bars"
RUNNING = "2|RUNNING|trainyard|2|node[1-2]|1795340150|1795340151|None|trainyard:job-2|job-2"
SHOWN = (
    "JobId=8 JobName=job-3 UserId=trainyard(1000) JobState={state} Reason={reason} Dependency=(null) Requeue=1 "
    "Restarts={restarts} BatchFlag=1 ExitCode={code} BatchHost={host} Comment=trainyard:job-3 StdErr=/fsx/x Power="
)


def test_the_queue_is_read_with_whose_jobs_they_are() -> None:
    ours, hers = queue.parsed(f"{PENDING}\n{RUNNING}\n")
    assert (ours.id, ours.ours, ours.nodes, ours.count, ours.started) == ("2", "job-2", "node[1-2]", 2, 1795340151.0)
    assert (hers.ours, hers.user, hers.state, hers.reason) == ("", "alice", "PENDING", "Resources")
    assert hers.name == "her job | with bars" and hers.started is None and hers.submitted == 1795340200.0


def test_a_job_with_our_comment_and_another_name_is_not_ours() -> None:
    (job,) = queue.parsed(RUNNING.replace("|job-2", "|job-3"))
    assert job.ours == ""


@given(st.text(max_size=60), st.text(max_size=60))
def test_whatever_a_colleague_calls_a_job_the_others_are_read(name: str, comment: str) -> None:
    """Bars and line ends in a name, too."""
    found = queue.parsed(f"5|RUNNING|eve|1|node3|1|2|None|{comment}|{name}\n{RUNNING}\n")
    assert [job.id for job in found if job.ours == "job-2" and job.user == "trainyard"] == ["2"]
    assert all(isinstance(job.count, int) for job in found)


@given(st.text())
def test_nothing_that_squeue_prints_is_an_error(text: str) -> None:
    assert all(job.id[0].isdecimal() for job in queue.parsed(text))


@pytest.mark.parametrize(
    ("state", "free"),
    [
        *(("idle", True), ("idle~", True), ("IDLE", True), ("completing", True), ("idle*", False)),
        *(("down*", False), ("mixed", False), ("allocated", False), ("drained", False)),
    ],
)
def test_which_nodes_can_take_a_job(state: str, free: bool) -> None:
    assert queue.is_free(state) is free


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("1-02:00:00", 93600), ("1:30:00", 5400), ("4:00", 240), ("0:30", 30), ("infinite", math.inf), ("n/a", math.inf)],
)
def test_how_long_a_partition_lets_a_job_run(limit: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    answers = iter((f"debug|1:00\nnodes*|{limit}\n", f"gpu|{limit}\n"))
    monkeypatch.setattr(queue, "ask", lambda argv: asked.append(argv) or next(answers))
    assert queue.longest() == ("nodes", seconds) and queue.longest("gpu") == ("gpu", seconds)
    assert [[word for word in argv if "partition" in word] for argv in asked] == [[], ["--partition=gpu"]]


def test_a_limit_above_the_partitions_is_told_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "longest", lambda _partition: ("nodes", 14400.0))
    spec = JobSpec(name="a", job="", launcher="slurm", cluster=cluster(), timeout=60.0, runs="runs", code="/code")
    spec = replace(spec, time_limit=14400.0)
    assert submission.wrong_limit(spec) == ""
    assert submission.wrong_limit(replace(spec, time_limit=14460.0)) == (
        "--time-limit 241m: Slurm's partition nodes lets a job run for 4h at most"
    )


@pytest.mark.parametrize(
    ("default", "most", "wrong", "warning"),
    [
        ("n/a", "1:00", True, 15),
        ("1:00", "infinite", True, 15),
        ("n/a", "2:00", False, 30),
        ("n/a", "3:00", False, 45),
        ("10:00", "1-00:00:00", False, 120),
        ("n/a", "infinite", False, 120),
    ],
)
def test_a_job_without_a_limit_is_warned_late_enough_to_train_or_refused(
    default: str, most: str, wrong: bool, warning: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm warns up to a minute early: of a partition's three minutes the first was as late as it could be."""
    monkeypatch.setattr(queue, "ask", lambda _argv: f"debug|1:00|1:00\nnodes*|{default}|{most}\n")
    spec = JobSpec(name="a", job="", launcher="slurm", cluster=cluster(), timeout=60.0, runs="runs", code="/code")
    expected = "Slurm's partition nodes lets a job run for 1m if it asks for no time; needed: at least 2m"
    said = submission.wrong_limit(spec)
    assert said.startswith(expected) if wrong else said == ""
    assert submission.batch_of(spec).warning == warning
    assert submission.batch_of(replace(spec, time_limit=60.0)).warning == 120, "the supervisor counts that itself"


def shown(**words: str) -> Fate | None:
    known = {"state": "FAILED", "reason": "None", "restarts": "0", "code": "0:0", "host": "node2"}
    return queue.parsed_fate(SHOWN.format(**{**known, **words}), "job-3")


def test_how_a_job_ended_is_read_and_of_our_job_alone() -> None:
    assert shown(code="0:9") == Fate("FAILED", "node2", 0, 9, 0, "None")
    assert shown(code="7:0", host="(null)", restarts="2") == Fate("FAILED", "", 7, 0, 2, "None")
    assert queue.parsed_fate(SHOWN.format(state="A", reason="", restarts="", code="", host=""), "job-4") is None


def job(number: str, nodes: str, ours: str = "", user: str = "alice") -> QueuedJob:
    comment = f"trainyard:{ours}" if ours else "(null)"
    return QueuedJob(number, "RUNNING", user, 1, nodes, 0.0, 0.0, "None", comment, ours or "x")


def test_a_job_whose_nodes_are_taken_is_told_by_whom() -> None:
    states = {"node1": "allocated", "node2": "idle", "node3": "down*"}
    queued = [job("7", "node1", "demo-1"), job("9", "", user="bob")]
    assert submission.too_few(1, states, queued, waits=False) == ""
    expected = "1 of 3 nodes free, 2 wanted; node1: busy with demo-1; node3 is down*"
    assert submission.too_few(2, states, queued, waits=False) == expected
    assert submission.too_few(2, states, queued, waits=True) == "", "node1 will be free again"
    assert submission.too_few(3, states, queued, waits=True) != "", "node3 will not"
    assert "node1: busy with Slurm's job 8 of bob" in submission.too_few(
        2, states, [job("8", "node1", user="bob")], waits=False
    )


def test_nodes_that_nobody_has_are_waited_for_and_named_if_they_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `fab train a && fab train b` Slurm may not have let go of a, or not have heard of the nodes for a while."""
    states = iter([{"node1": "allocated"}, {"node1": "completing*"}, {"node1": "idle*"}, {"node1": "idle"}])
    ended = replace(job("7", "node1", "demo-1"), state="COMPLETING")
    jobs = iter([[ended], [ended], [], []])
    monkeypatch.setattr(queue, "nodes", lambda _partition: next(states))
    monkeypatch.setattr(queue, "jobs", lambda: next(jobs))
    spec = JobSpec(
        name="a", job="", launcher="slurm", cluster=cluster(), timeout=60.0, runs="runs", code="/code", count=1
    )
    assert submission.refused(spec) == "" and list(states) == []
    monkeypatch.setattr(submission, "_SETTLED_SECONDS", 0.3)
    monkeypatch.setattr(queue, "nodes", lambda _partition: {"node1": "idle*", "node2": "idle"})
    monkeypatch.setattr(queue, "jobs", list)
    assert submission.refused(replace(spec, count=2)) == "1 of 2 nodes free, 2 wanted; node1 is idle*"


def test_nodes_that_a_job_has_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("waits for a job that runs"))
    monkeypatch.setattr(queue, "nodes", lambda _partition: {"node1": "allocated"})
    monkeypatch.setattr(queue, "jobs", lambda: [job("7", "node1", "demo-1")])
    spec = JobSpec(
        name="a", job="", launcher="slurm", cluster=cluster(), timeout=60.0, runs="runs", code="/code", count=1
    )
    assert submission.refused(spec) == "0 of 1 nodes free, 1 wanted; node1: busy with demo-1"


def test_slurms_own_words_are_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\necho 'sbatch: error: Batch job submission failed: Invalid partition' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SlurmError, match=r"^Batch job submission failed: Invalid partition$"):
        queue.ask(["sbatch", "x"])
    with pytest.raises(SlurmError, match="no-such-program: No such file"):
        queue.ask(["no-such-program"])
    program.write_text("#!/bin/sh\nsleep 5\n")
    with pytest.raises(SlurmError, match="does not answer in 0 s"):
        queue.ask(["sbatch", "x"], seconds=0.2)
