"""Ranks, pods and machines of a job on Kubernetes that are lost: what the job does, and what it says."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from gloo_ranks import TINY, tiny_tokens
from pods import PodsOfJob, job_of
from polling import until

from fabfile.backends.kubernetes.backend import KubernetesBackend

pytestmark = pytest.mark.faults
ROOT = Path(__file__).resolve().parents[2]
DEFAULT: dict[str, Any] = {"restarts": KubernetesBackend.restarts, "after_losses_only": True}
"""What `fab train` asks for if nobody has said how often a job is to start again."""
REJOIN = {"node/kubernetes/machines.py": ("REJOIN = 25.0", "REJOIN = 3.0")}


def three(job: PodsOfJob, step: int) -> None:
    for index in range(3):
        job.start(index)
    if step:
        job.step(step)


def test_a_killed_rank_costs_a_restart_and_no_time(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=30, restarts=1) as job:
        three(job, 7)
        began = time.monotonic()
        os.kill(job.rank(1), signal.SIGKILL)
        until(lambda: job.state["attempt"] == 2)
        assert time.monotonic() - began < 15
        assert job.ends("SUCCEEDED")["restarts_left"] == 0
        assert "error: rank 1 on machine-1 was killed by SIGKILL" in job.log
        assert "restart from the last checkpoint on 3 nodes; 0 more allowed" in job.log
        assert "rank 0 of 3 from step 5" in job.log or "rank 0 of 3 from step 10" in job.log


def test_lost_pods_are_gone_on_after_without_a_word_from_the_user(tmp_path: Path) -> None:
    """A worker's, a rank that is killed, then the first."""
    with job_of(tmp_path, steps=60, **DEFAULT) as job:
        three(job, 7)
        job.kill(1)
        job.start(1, machine="machine-7")
        job.step(12, attempt=2)
        os.kill(job.rank(2), signal.SIGKILL)
        job.step(17, attempt=3)
        job.kill(0)
        job.start(0)
        job.step(22, attempt=4)
        assert job.ends("SUCCEEDED", 90)["restarts_left"] == 0


@pytest.mark.parametrize(("settings", "attempts"), [(DEFAULT, 1), ({"restarts": 1}, 2)])
def test_what_a_program_would_do_again_is_tried_again_only_if_somebody_has_asked_for_it(
    tmp_path: Path, settings: dict[str, Any], attempts: int
) -> None:
    data = tmp_path / "tokens"
    data.mkdir()
    text = TINY.format(data=tiny_tokens(data)).replace("lr = 0.01", "lr = 1e30", 1)
    with job_of(tmp_path, pods=1, job_toml=text, trainer=ROOT / "training", **settings) as job:
        job.start(0)
        record = job.ends("FAILED", 240)
        assert "the loss is " in record["reason"] and record["ended_by"] == "program", record
        assert record["attempt"] == attempts, job.everything()


def test_without_a_restart_the_job_ends_with_the_culprit(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=5000) as job:
        three(job, 2)
        os.kill(job.rank(2), signal.SIGKILL)
        assert job.ends("FAILED")["reason"] == "rank 2 on machine-2 was killed by SIGKILL"
        assert [job.exits(index) for index in range(3)] == [1, 0, 0]
        until(lambda: not any(job.processes(index) for index in range(3)), 5)


def test_a_killed_pod_that_comes_again_elsewhere_is_in_the_next_attempt(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=30, restarts=1) as job:
        three(job, 7)
        job.kill(1)
        until(lambda: "is cut off" in job.log, 12)
        job.start(1, machine="machine-7")
        job.step(8, attempt=2)
        assert job.state["nodes"] == ["machine-0", "machine-7", "machine-2"] and "without machine" not in job.log
        job.ends("SUCCEEDED")
        assert [job.exits(index) for index in range(3)] == [0, 0, 0]


def test_without_a_pod_that_does_not_come_back_the_job_goes_on_with_the_rest(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=30, restarts=1, changes=REJOIN) as job:
        three(job, 7)
        job.kill(2)
        job.step(8, attempt=2)
        assert job.state["nodes"] == ["machine-0", "machine-1"]
        assert "2 of 3 pods are there, without machine-2" in job.log
        job.start(2)  # too late for this attempt: it waits
        job.ends("SUCCEEDED")
        assert "rank 1 of 2 from step" in job.log and job.exits(2) == 0


def test_a_killed_first_pod_goes_on_when_it_comes_again_and_costs_a_restart(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=30, restarts=2) as job:
        three(job, 7)
        job.kill(0)
        until(lambda: not job.processes(1, " rank "), 12, "the ranks of the others are left")
        job.start(0, machine="machine-8")
        job.step(8, attempt=2)
        assert job.state["restarts_left"] == 1 and job.state["nodes"] == ["machine-8", "machine-1", "machine-2"]
        job.ends("SUCCEEDED")
        assert [job.exits(index) for index in range(3)] == [0, 0, 0]


def test_a_killed_supervisor_is_to_be_made_again_by_the_operator(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=5000) as job:
        three(job, 2)
        (supervisor,) = job.processes(0, " supervise ")
        os.kill(supervisor, signal.SIGKILL)
        assert job.exits(0) == 128 + signal.SIGKILL
        until(lambda: not job.processes(0), 5)
        job.start(0)
        reason = job.ends("FAILED")["reason"]
        assert reason == "its first pod, on machine-0 (rank 0), was lost, with no restart left"
        assert [job.exits(index) for index in range(3)] == [1, 0, 0]


def test_a_supervisor_that_breaks_is_named_and_its_pod_is_not_made_again(tmp_path: Path) -> None:
    broken = {
        "node/job/attempt.py": (
            "    def _start(self, folder: Path) -> None:\n",
            "    def _start(self, folder: Path) -> None:\n        raise KeyError('x')\n",
        )
    }
    with job_of(tmp_path, pods=1, changes=broken) as job:
        job.start(0)
        reason = job.ends("FAILED")["reason"]
        assert reason.startswith("its supervisor on machine-0 ended with exit code 1: kubectl logs pods-")
        assert job.exits(0) == 1 and "KeyError: 'x'" in job.output(0)


def test_a_stopped_rank_and_a_stopped_keeper_are_named(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=5000, restarts=1) as job:
        three(job, 2)
        os.kill(job.rank(1), signal.SIGSTOP)
        until(lambda: "error: rank 1 on machine-1 is stopped (SIGSTOP, or a debugger)" in job.log, 15)
        job.step(2, attempt=2)
        (keeper,) = until(lambda: job.processes(2, " keep"))
        os.kill(keeper, signal.SIGSTOP)
        assert job.ends("FAILED", 40)["reason"].startswith("machine-2 (rank 2) is cut off: no word for ")


def test_a_first_pod_that_is_asked_to_end_leaves_a_checkpoint_to_the_next(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=40, pods=2, restarts=1) as job:
        job.start(0)
        job.start(1)
        job.step(22)
        job.pods[0].send_signal(signal.SIGTERM)
        assert job.exits(0) == 143
        step = json.loads((job.run_dir / "checkpoint.json").read_text())["step"]
        assert step > 20 and job.state["state"] == "RUNNING"
        job.start(0)
        assert job.ends("SUCCEEDED")["restarts_left"] == 0
        assert f"rank 0 of 2 from step {step}" in job.log


def test_two_supervisors_of_a_job_are_one_at_last(tmp_path: Path) -> None:
    """The first pod's machine was cut off, not dead; Kubernetes has made another first pod meanwhile."""
    with job_of(tmp_path, steps=40, restarts=2) as job:
        three(job, 3)
        first = job.pods[0]
        job.start(0, machine="machine-8")
        assert first.wait(20) == 143
        assert "another supervisor has taken this job over: this one ends" in job.log
        job.step(5, attempt=2)
        assert job.state["nodes"][0] == "machine-8"
        job.ends("SUCCEEDED")


def test_the_real_trainer_goes_on_from_its_checkpoint_with_a_pod_that_comes_again(tmp_path: Path) -> None:
    data = tmp_path / "tokens"
    data.mkdir()
    text = TINY.format(data=tiny_tokens(data)).replace("steps = 8", "steps = 400").replace("every = 2", "every = 50")
    with job_of(tmp_path, pods=2, restarts=1, job_toml=text, trainer=ROOT / "training") as job:
        job.start(0)
        job.start(1)
        until(lambda: (job.run_dir / "checkpoints/step-000050/manifest.json").exists(), 60, job.everything)
        job.kill(1)
        job.start(1, machine="machine-5")
        record = job.ends("SUCCEEDED", 90)
        assert record["attempt"] == 2 and record["nodes"] == ["machine-0", "machine-5"]
        assert re.search(r"going on from step (50|100|150|200|250|300|350)\b", job.log), job.log
        assert "rank 1 on machine-1" in job.log or "machine-1 (rank 1) is cut off" in job.log


@pytest.mark.parametrize(("machine", "then"), [("machine-2", "machine-5"), ("machine-1", "machine-1")])
def test_an_elastic_job_leaves_a_pod_that_kubernetes_ends_and_takes_the_next_one_in(
    machine: str, then: str, tmp_path: Path
) -> None:
    """Between two steps of the real trainer: no attempt is started again, and no step is done twice. The next pod is
    on another machine, or beside another pod of the job, as the one before."""
    data = tmp_path / "tokens"
    data.mkdir()
    text = TINY.format(data=tiny_tokens(data)).replace("steps = 8", "steps = 100000").replace("every = 2", "every = 50")
    with job_of(tmp_path, elastic=True, restarts=1, job_toml=text, trainer=ROOT / "training") as job:
        lines = job.run_dir / "metrics.jsonl"
        job.start(0)
        job.start(1)
        job.start(2, machine=machine)
        until(lambda: lines.exists() and len(lines.read_text().splitlines()) > 20, 120, job.everything)
        began = time.time()
        job.pods[2].send_signal(signal.SIGTERM)
        assert job.exits(2) == 143
        name = job.state["nodes"][2]
        until(lambda: f"{name}, which the job has left, is gone" in job.log, 15, job.everything)
        job.start(2, machine=then)
        until(lambda: f"rank 2 on {name} has joined: 3 ranks" in job.log, 120, job.everything)
        assert (f"{name}: its pod is on {then} now; the job keeps the name" in job.log) == (machine != then)
        (job.run_dir / "stop.json").write_text('{"how": "stop"}')
        record = job.ends("CANCELLED")
        assert "is in the checkpoint" in record["reason"], record
        assert (record["attempt"], record["restarts_left"], record["away"]) == (1, 1, []), job.log
        assert "rank 2 to leave after this step, 2 go on" in job.log and "has lost the others" not in job.log
        done = [json.loads(line) for line in lines.read_text().splitlines()]
        assert [line["step"] for line in done] == list(range(1, len(done) + 1))
        assert {len(line["rank_seconds"]) for line in done} == {2, 3} and len(done[-1]["rank_seconds"]) == 3
        first = next(line["time"] for line in done if len(line["rank_seconds"]) == 2)
        print(f"{first - began:.1f} s from the pod's end to the first step of two ranks")
