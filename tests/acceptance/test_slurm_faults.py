"""Jobs on nodes with Slurm, killed in every part: the culprit is named, nothing is left, and a job goes on."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import managed_jobs
import pytest
import user_programs
from jobs_on_nodes import ENDLESS, GONE_SECONDS, RANK, Job, Start, process, processes
from jobs_on_slurm import NODES, metrics, on_head, parts, run_dir, shared, slurm_of_three
from managed_jobs import Managed
from on_host import cut_power
from polling import until
from project import Project

from infra.clouds.local import cgroup, nodes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]
SAVED_SECONDS = 20.0
STARTED_SECONDS = 16.0
"""From a node's death to the start of the ranks that go on with a spare one. Without load it is 9 to 11, and they train
some 5 s later, when they have imported torch."""
SUPERVISOR = r"/usr/bin/python3 -I \S+/launch supervise"
SLURMD = r"/usr/sbin/slurmd "
ALL_IDLE = "sinfo --noheader --format='%D %T' || true"
STEADY = "train.min_lr=0.0006"
"""A learning rate that does not fall: the losses do not depend on the number of steps that are asked for."""


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    with slurm_of_three(make_shared_project()) as project:
        yield project


def kill_rank(project: Project, _job: Job) -> str:
    os.kill(process(project, "node2", RANK), signal.SIGKILL)
    return "FAILED rank 1 on node2 was killed by SIGKILL"


def kill_supervisor(project: Project, _job: Job) -> str:
    os.kill(process(project, "node1", SUPERVISOR), signal.SIGKILL)
    return "FAILED its supervisor on node1 was killed by SIGKILL"


def kill_slurmstepd(project: Project, job: Job) -> str:
    """That of the rank on node2."""
    rank = process(project, "node2", RANK)
    wrapper = parent(rank)
    os.kill(parent(wrapper), signal.SIGKILL)
    return "FAILED rank 1 on node2 is gone, with the program that watched it"


def cancel(project: Project, job: Job) -> str:
    on_head(project, f"scancel {job.state()['slurm']}")
    return r"CANCELLED cancelled in Slurm \(scancel\)"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("fault", [kill_rank, kill_supervisor, kill_slurmstepd, cancel])
def test_a_fault_ends_the_job_everywhere(cluster: Project, start: Start, fault: Callable[[Project, Job], str]) -> None:
    job = start(ENDLESS)
    wanted = fault(cluster, job)
    until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
    assert job.ends() == 1
    state = job.state()
    assert re.match(wanted, f"{state['state']} {state['reason']}"), (state, job.text())
    assert f"{job.id} {state['state']}: {state['reason']}" in job.text()
    after = start(step=0)
    assert after.ends(120) == 0, after.text()


def is_idle_again(project: Project) -> None:
    """Wait until Slurm has all three nodes for jobs."""
    until(lambda: "3 idle" in on_head(project, ALL_IDLE), 60, "Slurm is idle again")


def losses(project: Project, job: Job) -> list[float]:
    return [line["loss"] for line in metrics(project, job.id)]


def goes_on(project: Project, job: Job) -> None:
    """From a checkpoint, for some steps at least."""
    until(lambda: "going on from step" in job.text(), 60, lambda: f"it goes on:\n{job.text()}")
    trains_on(project, job)


def trains_on(project: Project, job: Job) -> None:
    step = metrics(project, job.id)[-1]["step"]
    until(lambda: metrics(project, job.id)[-1]["step"] > step + 20, 90, "it trains on")
    assert job.state()["state"] == "RUNNING"


@pytest.mark.soak
def test_after_each_fault_it_goes_on_to_the_losses_of_an_undisturbed_run(cluster: Project, start: Start) -> None:
    """After a killed rank by itself, on the same nodes; after the others, which end the job, when it is resumed."""
    job = start(ENDLESS, STEADY, "--restarts", "1", step=8)
    kill_rank(cluster, job)
    until(lambda: "attempt 2: 3 ranks on node1, node2, node3" in job.text(), 60, lambda: f"again:\n{job.text()}")
    goes_on(cluster, job)
    for fault in (kill_supervisor, kill_slurmstepd, cancel):
        fault(cluster, job)
        assert job.ends() == 1
        job = start("--resume", job.id, step=0)
        goes_on(cluster, job)
    assert "is in the checkpoint" in cluster.fab("stop", job.id).stdout
    has_undisturbed_losses(cluster, start, job)


def has_undisturbed_losses(project: Project, start: Start, job: Job, *options: str) -> None:
    """A job that did as many steps without a fault has the same ones. `options`: those of the job itself."""
    found = losses(project, job)
    undisturbed = start(STEADY, *options, f"train.steps={len(found)}", step=0)
    assert undisturbed.ends(300) == 0, undisturbed.text()
    assert found == losses(project, undisturbed)


@pytest.mark.soak
def test_slurms_own_limit_ends_a_job_with_a_checkpoint_to_go_on_from(cluster: Project, start: Start) -> None:
    """Slurm warns the batch script, and that the supervisor: here 30 s before the partition's 2 minutes, or up to a
    minute earlier."""
    options = ["--nodes", "1", "train.global_batch_tokens=7680"]
    on_head(cluster, "sudo scontrol update PartitionName=nodes MaxTime=2")
    try:
        job = start(ENDLESS, STEADY, *options)
        assert job.ends(150) == 1
    finally:
        on_head(cluster, "sudo scontrol update PartitionName=nodes MaxTime=INFINITE")
    state = job.state()
    step = re.fullmatch(r"Slurm's time limit; stopped: step (\d+) is in the checkpoint", state["reason"])
    assert state["state"] == "CANCELLED" and step, (state, job.text())
    assert state["ended"] - state["started"] < 120
    until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
    again = start("--resume", job.id, f"train.steps={int(step[1]) + 10}", step=0)
    assert again.ends(120) == 0 and f"going on from step {step[1]}" in again.text(), again.text()
    has_undisturbed_losses(cluster, start, again, *options)


def test_slurms_programs_may_die_and_start_anew_under_a_job(cluster: Project, start: Start) -> None:
    """slurmd on a worker and on the supervisor's node, and slurmctld."""

    def is_another(node: str, old: int) -> bool:
        found = processes(cluster, node, SLURMD)  # none, until systemd starts it anew
        return len(found) == 1 and found != [old]

    job = start(ENDLESS)
    for node in ("node3", "node1"):
        old = process(cluster, node, SLURMD)
        os.kill(old, signal.SIGKILL)
        trains_on(cluster, job)
        until(partial(is_another, node, old), 10, "slurmd is there again")
    # Slurm saves its queue some seconds after a change. If it dies before that, it takes the job for one that has not
    # started yet, starts it again, and takes the node, which refuses a second copy, out of service.
    until(lambda: time.time() - job.state()["started"] > SAVED_SECONDS, 90, "Slurm has saved its queue")
    on_head(cluster, "sudo systemctl kill --signal=KILL slurmctld")
    trains_on(cluster, job)
    assert "is in the checkpoint" in cluster.fab("stop", job.id).stdout
    is_idle_again(cluster)


@pytest.mark.parametrize("node", ["node3", "node1"], ids=["worker", "first"])
def test_a_node_whose_slurmd_does_not_come_back_is_named(cluster: Project, start: Start, node: str) -> None:
    """Slurm then ends the job; the supervisor's own node it cannot reach, if that is the one. When slurmd is there
    again, the job goes on."""
    job = start(ENDLESS, STEADY, step=8)
    cluster.ssh(node, "sudo systemctl stop slurmd")
    try:
        assert job.ends(90) == 1
        until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
        state = job.state()
        wanted = f"FAILED Slurm takes {node} for dead, as its slurmd does not answer"
        assert f"{state['state']} {state['reason']}".startswith(wanted), (state, job.text())
    finally:
        cluster.ssh(node, "sudo systemctl start slurmd")
    is_idle_again(cluster)
    again = start("--resume", job.id, step=0)
    goes_on(cluster, again)
    assert "is in the checkpoint" in cluster.fab("stop", again.id).stdout
    has_undisturbed_losses(cluster, start, again)


def test_a_full_disk_of_a_node_is_said_and_the_job_goes_on_later(cluster: Project, start: Start) -> None:
    """Two checkpoints fit, and the third does not. Where there is room again, it goes on from the one before."""
    undisturbed = start(step=0)
    assert undisturbed.ends(120) == 0, undisturbed.text()
    cluster.ssh("node2", "sudo mount -t tmpfs -o size=360k,mode=0777 tmpfs /fsx/runs")
    try:
        job = start("checkpoint.every=2", step=0)
        assert job.ends(120) == 1
        reason = job.state()["reason"]
        assert re.match(r"rank 1 \(node2\): \S*step-\d+: the disk is full \(0\.\d\d GB left\)", reason), job.text()
        until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
    finally:
        cluster.ssh("node2", "sudo umount /fsx/runs")
    again = start("checkpoint.every=2", "--resume", job.id, step=0)
    assert again.ends(120) == 0, again.text()
    assert re.search(r"going on from step \d+, verified on disk", again.text())
    assert losses(cluster, again) == losses(cluster, undisturbed)


@pytest.mark.parametrize("which", [-1, 0], ids=["worker", "first"])
def test_a_job_goes_on_with_a_spare_node_when_one_dies(cluster: Project, start: Start, which: int) -> None:
    """Also when it is the one with the supervisor. slurmctld's own node does not run the job."""
    blocker = on_head(cluster, "sbatch --parsable --nodelist=node1 --chdir=/tmp --wrap='sleep 900'").strip()
    try:
        job = start(ENDLESS, STEADY, "--nodes", "2", "--restarts", "1", step=8)
        names = job.state()["nodes"]
        assert sorted(names) == ["node2", "node3"]
        on_head(cluster, f"scancel {blocker}")
        dead, began = names[which], time.time()
        assert cgroup.kill(nodes.machine(cluster.stack, dead).group, timeout=10)  # all at once, as when the power goes
        until(lambda: "attempt 2: 2 ranks on node1, " in job.text(), 60, lambda: f"another attempt: {job.text()}")
        started = re.search(r"^(\S+) \S+ - attempt 2: ", (run_dir(cluster, job.id) / "log").read_text(), re.MULTILINE)
        assert started and float(started[1]) - began < STARTED_SECONDS, job.text()
        # What ranks that are alive still write comes within a second.
        again = until(
            lambda: [line for line in metrics(cluster, job.id) if line["time"] > began + 3], 60, "it trains again"
        )
        print(f"{dead} dead to training again: {again[0]['time'] - began:.1f} s")
        assert f"error: {dead} (rank {names.index(dead)}) is cut off" in job.text() or "does not answer" in job.text()
        until(lambda: "going on from step" in job.text(), 30, lambda: f"its log says so: {job.text()}")
        assert job.state()["attempt"] == 2
        assert "down" in on_head(cluster, f"sinfo --noheader --nodes={dead} --format=%T")
        cluster.fab("stop", job.id, code=1)  # whether anything is left on the dead node, nobody can tell
        until(lambda: not parts(cluster, job.id, *(name for name in NODES if name != dead)), GONE_SECONDS, "gone")
        has_undisturbed_losses(cluster, start, job, "--nodes", "2")
    finally:
        on_head(cluster, f"scancel {blocker} || true")
        cluster.fab("up", "--yes")
        cluster.fab("wait")


def test_a_small_roberta_from_its_text_to_a_filled_mask(cluster: Project, start: Start) -> None:
    """Here, as it takes long."""
    cluster.fab("prepare", "roberta-small", "--yes", timeout=300)
    short = ["train.steps=40", "train.warmup=10", "train.eval_every=20", "checkpoint.every=20"]
    job = start(*short, file="roberta-small", step=0)
    assert job.ends(240) == 0, job.text()
    first, last = losses(cluster, job)[0], losses(cluster, job)[-1]
    assert first == pytest.approx(math.log(1032), rel=0.05) and last < first - 0.3, "it learns how frequent tokens are"
    assert "perplexity" in job.text()
    filled, likeliest = cluster.fab("sample", job.id, "--prompt", "import <mask>", timeout=240).stdout.splitlines()
    assert filled.startswith("import") and "<mask>" not in filled and likeliest.startswith("<mask> 1: ")
    few = ["train.steps=5", "train.warmup=1", "train.eval_every=5"]
    by_nodes = []
    for count in ("1", "2", "3"):
        job = start(*few, "--nodes", count, file="roberta-small", step=0)
        assert job.ends(120) == 0, job.text()
        by_nodes.append(losses(cluster, job))
    assert len(by_nodes[0]) == 5
    for found in by_nodes[1:]:
        assert found == pytest.approx(by_nodes[0], rel=2e-5), "masks depend on seed and step alone"


@pytest.fixture(scope="module")
def expected(cluster: Project, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last metrics of the managed jobs below, undisturbed."""
    return managed_jobs.undisturbed(cluster, shared(cluster) / "runs", tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_a_managed_job_gets_its_machine_again_and_ends_as_if_nothing_had_been(
    expected: dict[str, Any], cluster: Project, tmp_path: Path
) -> None:
    """Its manager is killed as well, in between, and another one takes its place."""
    job = Managed.begun(cluster, shared(cluster) / "runs", tmp_path / "first")
    cut_power(cluster.stack, "node2")
    job.loses_its_manager("node2")
    job.ends_as(expected, "node2")
    job.was_moved_back("node2")
    until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
    is_idle_again(cluster)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_a_managed_job_outlives_the_head_with_slurms_queue(
    expected: dict[str, Any], cluster: Project, tmp_path: Path
) -> None:
    """Which is the supervisor's machine, too: what the job has is in the shared folder."""
    job = Managed.begun(cluster, shared(cluster) / "runs", tmp_path / "first")
    cut_power(cluster.stack, "node1")
    job.ends_as(expected, "node1")
    until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
    is_idle_again(cluster)


@pytest.mark.soak
def test_hugging_faces_trainer_runs_unchanged_and_goes_on_from_its_checkpoint(cluster: Project, tmp_path: Path) -> None:
    """Here, as it takes long: each node imports transformers."""
    user_programs.check_finetune(cluster, user_programs.with_transformers(tmp_path / "work"))
