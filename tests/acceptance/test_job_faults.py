"""Jobs on real machines: followed, lost sight of, stopped, resumed, and killed in every part; nothing is ever left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from jobs_on_nodes import ENDLESS, GO_ON, GONE_SECONDS, LONG, RANK, Job, listed, parts, process
from on_host import cut_power
from polling import until
from project import Project

pytestmark = pytest.mark.faults


@pytest.mark.soak
def test_a_job_from_its_file_to_its_end(cluster: Project, start: Callable[..., Job], tmp_path: Path) -> None:
    job = start(step=0)
    assert job.ends(120) == 0, job.text()
    text = job.text()
    assert "[node1 rank=0] step 12/12 loss" in text and "[node2 rank=1] on node2: 1 thread on" in text
    state = job.state()
    assert (state["state"], state["exit_code"], state["attempt"]) == ("SUCCEEDED", 0, 1)
    assert parts(cluster, job.id) == []
    again = cluster.fab("logs", job.id)
    assert [line for line in again.stdout.splitlines() if "step" in line] == [
        line for line in text.splitlines() if "step" in line
    ]
    assert set(re.findall(r"rank=(\d)", cluster.fab("logs", job.id, "--rank", "2").stdout)) == {"2"}
    cluster.fab("fetch", job.id, "--to", str(tmp_path / "fetched"))
    assert (tmp_path / "fetched/checkpoints/step-000012/manifest.json").exists()
    assert len((tmp_path / "fetched/metrics.jsonl").read_text().splitlines()) == 12
    # Every node keeps the checkpoint, so that each may be lost.
    there = cluster.fab("run", f"ls runs/{job.id}/checkpoints").stdout
    assert sorted(re.findall(r"\[(node\d)\] step-000012", there)) == ["node1", "node2", "node3"]


def test_bad_input_starts_nothing(cluster: Project) -> None:
    before = listed(cluster)
    for argv, line in (
        (["train.lrr=1"], "train.lrr: no such key"),
        (["train.steps=no"], "train.steps = "),
        (["train.global_batch_tokens=100"], "train.global_batch_tokens = 100"),
        (["--nodes", "4"], "--nodes 4"),
        (["--launcher", "torchrun"], "torchrun is for one node"),
        (["--resume", "job-999"], "no job 'job-999'"),
        (["data.path=elsewhere"], "node1: data.path = elsewhere"),
    ):
        done = cluster.fab("train", "job.toml", *argv, code=2)
        assert done.stderr.startswith(line) and "Traceback" not in done.stderr, done.stderr
    assert listed(cluster) == before


def test_a_dry_run_touches_nothing(cluster: Project) -> None:
    before = listed(cluster)
    shown = cluster.fab("train", "job.toml", "--dry-run").stdout
    assert "mpirun -n 3 -ppn 1" in shown and "node3:1" in shown and listed(cluster) == before


def kill_rank(project: Project, _job: Job) -> str:
    os.kill(process(project, "node2", RANK), signal.SIGKILL)
    return "rank 1 on node2 was killed by SIGKILL"


def stop_rank(project: Project, _job: Job) -> str:
    os.kill(process(project, "node3", RANK), signal.SIGSTOP)
    return r"rank 2 on node3 is stopped \(SIGSTOP"


def kill_mpirun(project: Project, _job: Job) -> str:
    os.kill(process(project, "node1", r"mpiexec\.hydra "), signal.SIGKILL)
    return "mpirun was killed by SIGKILL"


def kill_launcher(project: Project, job: Job) -> str:
    project.ssh("node1", f"sudo systemctl kill --signal=KILL trainyard-job-{job.id}.service")
    return "its launcher on the head was killed by SIGKILL"


def kill_keeper(project: Project, _job: Job) -> str:
    os.kill(process(project, "node2", r"/usr/bin/python3 -I \S+/launch keep"), signal.SIGKILL)
    return r"node2 \(rank 1\) is cut off"


@pytest.mark.parametrize("fault", [kill_rank, stop_rank, kill_mpirun, kill_launcher, kill_keeper])
def test_a_fault_ends_the_job_everywhere(
    cluster: Project, start: Callable[..., Job], fault: Callable[[Project, Job], str]
) -> None:
    job = start(ENDLESS)
    reason = fault(cluster, job)
    until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
    assert job.ends() == 1
    state = job.state()
    assert (state["state"], state["exit_code"]) == ("FAILED", 1) and re.match(reason, state["reason"]), state
    assert re.search(rf"\] {job.id} FAILED: {reason}", job.text())


def test_a_node_that_is_cut_off_ends_its_part_by_itself(cluster: Project, start: Callable[..., Job]) -> None:
    job = start(ENDLESS)
    link = f"vb-{cluster.stack}-node3"
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    try:
        until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left, on node3 neither")
        assert job.ends() == 1
    finally:
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
    assert job.state()["reason"].startswith("node3 (rank 2) is cut off")


def test_a_lost_laptop_loses_nothing_and_a_stopped_job_goes_on(cluster: Project, start: Callable[..., Job]) -> None:
    job = start(ENDLESS)
    os.killpg(job.fab.pid, signal.SIGKILL)
    busy = cluster.fab("train", "job.toml", code=1)
    assert f"busy with {job.id}" in busy.stderr
    queued = cluster.fab("train", "job.toml", "--queue", "--detach").stdout.partition(":")[0]
    assert "RUNNING" in cluster.fab("status").stdout
    stopped = cluster.fab("stop", job.id).stdout
    step = int(re.search(r"stopped: step (\d+) is in the checkpoint", stopped)[1])  # type: ignore[index]
    assert f"nothing of {job.id} is left on 3 nodes" in stopped and job.state()["state"] == "CANCELLED"
    waited = cluster.fab("logs", queued, "--follow").stdout
    assert f"waiting for {job.id}" in waited and f"{queued} SUCCEEDED" in waited
    resumed = start(f"train.steps={step + 3}", "--resume", job.id, step=0)
    assert resumed.ends(90) == 0 and f"going on from step {step}" in resumed.text()
    lines = [int(n) for n in re.findall(r"rank=0\] step (\d+)/", cluster.fab("logs", job.id).stdout)]
    assert sorted(set(lines)) == list(range(1, step + 4)), "no line of the time without a laptop is missing"


def test_a_resumed_job_keeps_its_settings_and_its_log_is_not_shown_again(cluster: Project) -> None:
    first = cluster.fab("train", "job.toml", "train.steps=5")
    job = first.stdout.partition(":")[0]
    done = cluster.fab("train", "--resume", "latest", code=2)
    assert done.stderr.startswith(f"{job} has done its 5 steps; give it more to continue")
    resumed = cluster.fab("train", "--resume", "latest", "train.steps=8", "train.threads=2").stdout
    assert resumed.startswith(f"{job}: train.steps: 5 -> 8\n{job}: train.threads: 0 -> 2\n{job}: 3 ranks on")
    assert "going on from step 5" in resumed and "rank=0] step 8/8" in resumed and "2 threads on" in resumed
    assert "step 3/5" not in resumed, "that was shown before"
    assert "step 3/5" in cluster.fab("logs", job.rpartition("-")[2]).stdout, "a number names a job"


def test_ctrl_c_only_lets_go(cluster: Project, start: Callable[..., Job]) -> None:
    job = start(ENDLESS, "--nodes", "1", "--launcher", "torchrun")
    job.fab.send_signal(signal.SIGINT)
    assert job.ends(10) == 130
    assert "goes on without you" in job.text() and job.state()["state"] == "RUNNING"
    assert "Traceback" not in job.text()


@pytest.mark.soak
def test_launch_and_stop_again_and_again(cluster: Project) -> None:
    def ports() -> list[str]:
        return sorted(cluster.fab("run", "ss -Htln | wc -l").stdout.splitlines())

    before = ports()
    for cycle in range(int(os.environ.get("TRAINYARD_CYCLES", "3"))):
        job = cluster.fab("train", "job.toml", ENDLESS, "--detach").stdout.partition(":")[0]
        time.sleep(cycle % 5)  # in every phase of a start
        assert "CANCELLED" in cluster.fab("stop", job, *(["--now"] if cycle % 2 else [])).stdout
        assert parts(cluster, job) == []
    assert ports() == before


def test_what_cannot_be_elastic_is_refused(cluster: Project) -> None:
    for argv, line in (
        (["train.parallel=fsdp"], "train.parallel = fsdp; allowed in an elastic job: auto or ddp"),
        (["--launcher", "mpirun"], "--launcher mpirun: an elastic job has a launcher of its own"),
    ):
        done = cluster.fab("train", "job.toml", "--elastic", *argv, code=2)
        assert done.stderr.startswith(line), done.stderr


def test_ranks_are_lost_and_join_again(cluster: Project, start: Callable[..., Job]) -> None:
    job = start("--elastic", ENDLESS, *LONG, step=20)
    rank = process(cluster, "node1", RANK)
    assert os.getpriority(os.PRIO_PROCESS, rank) >= 0, "the priority of its supervisor is not the rank's"
    assert Path(f"/proc/{rank}/oom_score_adj").read_text().strip() == "0"
    for number, how in ((1, signal.SIGKILL), (0, signal.SIGKILL), (2, signal.SIGSTOP)):
        node = f"node{number + 1}"
        os.kill(process(cluster, node, RANK), how)
        until(partial(job.says, f"rank {number} on {node} has joined: 3 ranks"), 60)
        since = len(job.times())
        until(partial(job.has_steps, since + 6), 60, "steps of three ranks")
    assert "is in the checkpoint" in cluster.fab("stop", job.id).stdout
    assert job.state()["attempt"] == 1 and f"{job.id}: 3 ranks" in job.text() and "5 more may be lost" in job.text()
    assert parts(cluster, job.id) == []
    seen = job.times()
    gaps = [after[0] - before[0] for before, after in zip(seen.values(), list(seen.values())[1:], strict=False)]
    assert max(gaps) < GO_ON
    counts = [one[1] for one in seen.values()]
    assert set(counts) == {2, 3} and counts[-1] == 3 and job.text().count("2 ranks of 3 go on") == 3
    fixed = start(f"train.steps={len(seen)}", *LONG, step=0)
    assert fixed.ends(240) == 0
    undisturbed = fixed.times()
    assert [one[2] for one in seen.values()] == pytest.approx([one[2] for one in undisturbed.values()], rel=1e-4)


@pytest.mark.soak
def test_a_dead_node_is_left_out_of_the_next_attempt(cluster: Project, start: Callable[..., Job]) -> None:
    job = start(ENDLESS, "--restarts", "1", step=8)
    cut_power(cluster.stack, "node3")
    until(lambda: "attempt 2: 2 ranks on node1, node2" in job.text(), 40, "another attempt")
    until(lambda: "going on from step" in job.text(), 60, "it goes on")
    state = job.state()
    assert (state["state"], state["nodes"], state["attempt"]) == ("RUNNING", ["node1", "node2"], 2)
    assert "node3" in cluster.fab("stop", job.id, code=1).stdout  # whether anything is left there, nobody can tell
    assert parts(cluster, job.id, "node1", "node2") == []
    cluster.fab("up", "--yes")
    cluster.fab("wait")
