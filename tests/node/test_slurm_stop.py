"""How a job with Slurm is stopped: by its supervisor, and in Slurm where that does not answer or has not begun."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from played_slurm import Slurm, record, row

from node.job import endings, files, job_table
from node.slurm import submission

FATE = "JobName=a-1 JobState={} Reason=None Restarts=0 ExitCode=0:15 BatchHost=node1 Comment=trainyard:a-1"
LETS_GO = "sed -i s/RUNNING/CANCELLED/ scontrol.out; : >squeue.out"
"""What scancel does when Slurm ends the job at once."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_NOW_SECONDS", 0.5)


@pytest.fixture
def running(slurm: Slurm) -> Slurm:
    """Slurm, which runs a-1 as its job 7."""
    slurm.queue(row())
    slurm.job(FATE.format("RUNNING"))
    slurm.program("scancel", LETS_GO)
    return slurm


def stop(run_dir: Path, how: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert submission.stop([str(run_dir), how]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert files.read(run_dir / "stop.json") == {"how": how}, "as the supervisor reads it"
    return answer


def ended(run_dir: Path) -> tuple[str, str, str]:
    state = files.read(run_dir / "state.json")
    return state["state"], state["reason"], state.get("ended_by", "")


def test_a_supervisor_that_is_silent_is_cancelled_in_slurm_and_the_end_recorded(
    tmp_path: Path, running: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, began = record(tmp_path / "runs"), time.monotonic()
    assert stop(run_dir, "now", capsys) == {}
    assert time.monotonic() - began >= 0.5, "it has that long to end its job itself"
    assert running.asked("scancel") == "7\n"
    assert ended(run_dir) == ("CANCELLED", "cancelled in Slurm (scancel)", endings.SOMEBODY)


def test_a_supervisor_that_answers_ends_its_job_itself(
    tmp_path: Path, running: Slurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submission, "_NOW_SECONDS", 60.0)  # on a busy machine the timer is late
    run_dir = record(tmp_path / "runs")
    own = ("CANCELLED", "stopped without a checkpoint", endings.SOMEBODY)
    supervisor = threading.Timer(0.15, lambda: job_table.over(run_dir, own[0], own[1], 1, own[2]))
    supervisor.start()
    assert stop(run_dir, "now", capsys) == {}
    supervisor.join()
    assert running.asked("scancel") == "" and ended(run_dir) == own


def test_a_job_that_is_to_stop_with_a_checkpoint_is_left_to_its_supervisor(
    tmp_path: Path, running: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = record(tmp_path / "runs")
    assert stop(run_dir, "stop", capsys) == {}
    assert running.asked("scancel") == "" and ended(run_dir)[0] == "RUNNING"


def test_the_end_is_recorded_once_slurm_has_let_go_of_the_job(
    tmp_path: Path, running: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until then its processes may still run, and it is not yet known how it ended."""
    run_dir = record(tmp_path / "runs")
    completing = "sed -i s/RUNNING/COMPLETING/ squeue.out scontrol.out"
    later = f"sleep 1; {LETS_GO.replace('RUNNING', 'COMPLETING')}"
    running.program("scancel", f"{completing}\n({later}) >/dev/null 2>&1 &")
    assert stop(run_dir, "now", capsys) == {}
    assert ended(run_dir) == ("CANCELLED", "cancelled in Slurm (scancel)", endings.SOMEBODY)


@pytest.mark.parametrize("how", ["stop", "now"])
def test_a_job_that_waits_is_cancelled_either_way(
    how: str, tmp_path: Path, running: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = record(tmp_path / "runs", state="PENDING", started=None)
    running.queue(row("PENDING", "Resources"))
    assert stop(run_dir, how, capsys) == {}
    assert running.asked("scancel") == "7\n"
    assert ended(run_dir) == ("CANCELLED", "stopped before it started", endings.SOMEBODY)


def test_a_job_that_waits_to_go_on_has_not_been_stopped_before_it_started(
    tmp_path: Path, running: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm has requeued it when its first node died."""
    run_dir = record(tmp_path / "runs")
    running.queue(row("PENDING", "Resources"))
    assert stop(run_dir, "stop", capsys) == {}
    assert running.asked("scancel") == "7\n"
    assert ended(run_dir) == ("CANCELLED", "cancelled in Slurm (scancel)", endings.SOMEBODY)


def test_a_refusal_of_slurms_is_told_and_nothing_recorded(
    tmp_path: Path, running: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = record(tmp_path / "runs")
    running.program("scancel", "echo 'scancel: error: Kill job error on job id 7: Access denied' >&2; exit 1")
    answer = stop(run_dir, "now", capsys)
    assert answer == {"refused": "Slurm: Kill job error on job id 7: Access denied"}
    assert ended(run_dir)[0] == "RUNNING"
