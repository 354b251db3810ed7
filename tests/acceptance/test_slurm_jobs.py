"""Jobs on nodes with Slurm: shown, followed, stopped, gone on with, sampled, fetched; and beside those of others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import same_losses
import several_jobs
import user_programs
from jobs_on_nodes import ENDLESS, GONE_SECONDS, RANK, Start, another_stack, listed, process
from jobs_on_slurm import NODES, TEXT, metrics, on_head, parts, run_dir, shared, slurm_of_three
from polling import until
from project import Project

pytestmark = pytest.mark.timeout(900)
BEGUN_SECONDS = 6.0
"""From the job's record to the start of its ranks, on nodes that are up; without load it is 1, and the first step comes
some 6 s later, when three ranks have imported torch on two cores."""


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    with slurm_of_three(make_shared_project()) as project:
        yield project


def test_a_dry_run_is_what_would_be_submitted_and_touches_nothing(cluster: Project) -> None:
    before = listed(cluster)
    shown = cluster.fab("train", "job.toml", "--dry-run", "--nodes", "2", "--restarts", "1").stdout
    assert "#SBATCH --nodes=2\n" in shown and "#SBATCH --requeue\n" in shown
    assert re.search(r"^srun .*--nodes 2 --ntasks 2 --ntasks-per-node 1 ", shown, re.MULTILINE)
    assert listed(cluster) == before and on_head(cluster, "squeue --noheader") == ""


def test_bad_input_starts_nothing(cluster: Project) -> None:
    before = listed(cluster)
    for argv, line in (
        (["--launcher", "mpirun"], "--launcher mpirun: Slurm starts the jobs of this cluster: leave it out"),
        (["--time-limit", "soon"], "--time-limit soon: must be a number with s, m, h or d"),
        (["--nodes", "4"], "--nodes 4"),
        (["data.path=/fsx/elsewhere"], "node1: data.path = /fsx/elsewhere"),
    ):
        done = cluster.fab("train", "job.toml", *argv, code=2)
        assert done.stderr.startswith(line) and "Traceback" not in done.stderr, done.stderr
    assert listed(cluster) == before


def test_a_limit_above_the_partitions_is_refused_with_both(cluster: Project) -> None:
    before = listed(cluster)
    on_head(cluster, "sudo scontrol update PartitionName=nodes MaxTime=1")
    try:
        done = cluster.fab("train", "job.toml", "--time-limit", "90s", code=2)
    finally:
        on_head(cluster, "sudo scontrol update PartitionName=nodes MaxTime=INFINITE")
    assert done.stderr == "--time-limit 90s: Slurm's partition nodes lets a job run for 1m at most\n"
    assert listed(cluster) == before


def test_a_job_from_its_file_to_its_text(cluster: Project, start: Start, tmp_path: Path) -> None:
    job = start(step=0)
    assert job.ends(120) == 0, job.text()
    assert re.search(rf"^{job.id}: 3 ranks on 3 nodes, as Slurm's job \d+$", job.text(), re.MULTILINE)
    for rank, node in enumerate(NODES):
        assert f"[{node} rank={rank}] on {node}: 1 thread on" in job.text()
    state = job.state()
    assert (state["state"], state["exit_code"], state["attempt"]) == ("SUCCEEDED", 0, 1)
    assert state["nodes"] == list(NODES) and state["slurm"].isdigit()
    print(f"submit to first step: {metrics(cluster, job.id)[0]['time'] - state['created']:.1f} s")
    begun = min(float(line.split()[0]) for line in (run_dir(cluster, job.id) / "log").read_text().splitlines())
    assert begun - state["created"] < BEGUN_SECONDS, "supervisor and keepers are there"
    until(lambda: parts(cluster, job.id) == [], GONE_SECONDS, "nothing of the job is left")
    record = (run_dir(cluster, job.id) / "job.sbatch").read_text()
    assert f"supervise /fsx/runs/{job.id}" in record
    cluster.fab("fetch", job.id, "--to", str(tmp_path / "fetched"))
    assert (tmp_path / "fetched/checkpoints/step-000012/manifest.json").exists()
    assert len((tmp_path / "fetched/metrics.jsonl").read_text().splitlines()) == 12
    text = cluster.fab("sample", job.id, "--prompt", "fab ", "--tokens", "20", "--seed", "7").stdout
    assert text.startswith("fab ") and len(text) > 20


@pytest.mark.acceptance
def test_a_stopped_job_goes_on_to_the_same_losses(
    cluster: Project, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped with a checkpoint, by a verb whose follower is gone; its secret has reached rank 0 alone."""
    monkeypatch.setitem(cluster.env, "WANDB_NOTES", "k" * 40)
    # A learning rate that does not fall: the losses do not depend on the number of steps that are asked for.
    options = ["train.min_lr=0.0006", "--nodes", "2"]
    job = start(ENDLESS, *options)
    job.fab.kill()
    nodes = job.state()["nodes"]
    secret = f"WANDB_NOTES={'k' * 40}".encode()
    there = [secret in Path(f"/proc/{process(cluster, node, RANK)}/environ").read_bytes() for node in nodes]
    assert there == [True, False]
    stopped = cluster.fab("stop", job.id).stdout
    assert f"nothing of {job.id} is left on 3 nodes" in stopped
    kept = [path for path in run_dir(cluster, job.id).rglob("*") if path.is_file()]
    assert [path for path in kept if "k" * 40 in path.read_text("latin1")] == []
    same_losses.check_resumed(start, job, options, stopped, metrics)


@pytest.mark.acceptance
@pytest.mark.soak
def test_a_job_ends_with_a_checkpoint_before_its_time_is_over(cluster: Project, start: Start) -> None:
    job = start(ENDLESS, "--nodes", "1", "--time-limit", "40s", step=0)
    assert job.ends(90) == 1
    state = job.state()
    expected = r"its time limit; stopped: step \d+ is in the checkpoint"
    assert state["state"] == "CANCELLED" and re.fullmatch(expected, state["reason"]), state
    assert state["ended"] - state["started"] < 40
    until(lambda: parts(cluster, job.id) == [], GONE_SECONDS, "nothing of the job is left")


@pytest.mark.acceptance
def test_a_colleagues_job_is_listed_is_in_the_way_and_is_waited_for(cluster: Project, start: Start) -> None:
    cluster.fab("run", "sudo useradd --create-home alice")
    submit = "sudo -u alice sbatch --parsable --job-name='her own' --nodes=2 --chdir=/tmp --wrap='sleep 600'"
    number = on_head(cluster, submit).strip()
    until(lambda: f'"id": "slurm:{number}"' in listed(cluster), 10, "it is listed")
    (hers,) = [job for job in json.loads(listed(cluster)) if job["id"] == f"slurm:{number}"]
    assert (hers["user"], hers["name"], hers["count"]) == ("alice", "her own", 2)
    assert re.search(rf"{number} +RUNNING +2 .*submitted by alice: her own", cluster.fab("jobs").stdout)
    busy = cluster.fab("train", "job.toml", code=1).stderr
    assert busy.startswith("1 of 3 nodes free, 3 wanted; ") and f"busy with Slurm's job {number} of alice" in busy
    job = start("--queue", step=0)
    until(lambda: job.state()["reason"] == "Slurm: Resources", 20, "it waits")
    assert job.state()["state"] == "PENDING"
    waits = start("--queue", step=0)
    stopped = cluster.fab("stop", waits.id).stdout
    assert f"{waits.id} CANCELLED: stopped before it started" in stopped and waits.ends() == 1
    on_head(cluster, f"sudo -u alice scancel {number}")
    assert job.ends(120) == 0, job.text()


@pytest.mark.acceptance
@pytest.mark.soak
def test_programs_that_know_nothing_of_us_run_unchanged(cluster: Project, tmp_path: Path) -> None:
    work = user_programs.written(tmp_path / "work")
    user_programs.check_mpi(cluster, work)
    user_programs.check_train(cluster, work, lambda job: parts(cluster, job), tmp_path / "fetched")


@pytest.mark.acceptance
@pytest.mark.soak
def test_a_sweep_runs_its_jobs_side_by_side_and_compares_them(cluster: Project, tmp_path: Path) -> None:
    jobs = several_jobs.check_sweep(cluster, shared(cluster), tmp_path / "report.html")
    until(lambda: not any(parts(cluster, job) for job in jobs), GONE_SECONDS, "nothing of the jobs is left")
    until(lambda: on_head(cluster, "squeue --noheader") == "", 60, "Slurm's queue is empty")


@pytest.mark.faults
@pytest.mark.soak
def test_with_a_stack_without_slurm_it_trains_one_model(cluster: Project, tmp_path: Path) -> None:
    with another_stack(cluster) as second:
        cluster.fab("prepare", "job.toml", *TEXT, "--yes", "--stack", second)
        job = several_jobs.check_together(cluster, second, shared(cluster), tmp_path)
        until(lambda: not parts(cluster, job), GONE_SECONDS, "nothing of the job is left")
    until(lambda: on_head(cluster, "squeue --noheader") == "", 60, "Slurm's queue is empty")
