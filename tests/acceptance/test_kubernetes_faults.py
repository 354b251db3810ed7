"""Jobs on local nodes with Kubernetes, hit in every part: the culprit is named, nothing is left, and a job goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import managed_jobs
import pytest
import same_losses
import user_programs
from jobs_on_kubernetes import (
    AGAIN_SECONDS,
    MACHINE_SECONDS,
    kill_machine,
    kill_pod,
    kubectl,
    kubernetes_of_three,
    machine_of,
    metrics,
    other_inventory,
    shared,
    state,
    trains_again,
)
from jobs_on_nodes import ENDLESS, GONE_SECONDS, RANK, Job, Start, parts, process
from managed_jobs import Managed
from polling import until
from project import Project

from infra import training_operator

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    with kubernetes_of_three(make_shared_project()) as project:
        yield project


def test_a_killed_rank_is_named_and_nothing_is_left(cluster: Project, start: Start) -> None:
    job = start(ENDLESS, "--restarts", "0")
    os.kill(process(cluster, "node2", RANK), signal.SIGKILL)
    until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
    assert job.ends(60) == 1
    record = job.state()
    assert record["state"] == "FAILED" and "on node2 was killed by SIGKILL" in record["reason"], (record, job.text())
    after = start(step=0)
    assert after.ends(120) == 0, after.text()


def test_an_elastic_job_outlives_a_rank_and_a_pod(cluster: Project, start: Start) -> None:
    """Both join it again, in the same attempt: the pod as soon as Kubernetes has made it again."""
    job = start(ENDLESS, "--elastic", "model.dropout=0")
    os.kill(process(cluster, "node2", RANK), signal.SIGKILL)
    until(lambda: job.text().count("has joined: 3 ranks") == 1, AGAIN_SECONDS, job.text)
    kill_pod(cluster, f"{job.id}-worker-0")
    until(lambda: job.text().count("has joined: 3 ranks") == 2, AGAIN_SECONDS, job.text)
    steps = [line["step"] for line in metrics(cluster, job.id)]
    assert steps == list(range(1, len(steps) + 1)) and state(cluster, job.id)["attempt"] == 1
    assert "is in the checkpoint" in cluster.fab("stop", job.id).stdout
    until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")


@pytest.mark.soak
def test_lost_pods_come_again_and_the_losses_are_those_of_an_undisturbed_job(cluster: Project, start: Start) -> None:
    """A worker's, then the first, which has the supervisor: by force, so that nobody asks for a checkpoint."""

    def lose(job: Job) -> None:
        for attempt, name in enumerate(("worker-0", "master-0"), start=2):
            kill_pod(cluster, f"{job.id}-{name}")
            trains_again(cluster, job, attempt, AGAIN_SECONDS)

    same_losses.check_after_losses(start, lose, metrics)


@pytest.mark.soak
def test_a_llama_in_shards_loses_a_rank_and_a_pod_and_goes_on_on_fewer_machines(cluster: Project, start: Start) -> None:
    """By itself, on as many ranks, to the same losses; then, resumed on two, to the same but for rounding."""
    options = ["train.min_lr=0.0006", "checkpoint.every=10"]
    job = start(ENDLESS, *options, file="llama.toml", step=15)
    os.kill(process(cluster, "node2", RANK), signal.SIGKILL)
    trains_again(cluster, job, 2, AGAIN_SECONDS)
    kubectl(cluster, "delete", "pod", f"{job.id}-worker-0", "--wait=false")
    trains_again(cluster, job, 3, AGAIN_SECONDS)
    assert "is in the checkpoint" in cluster.fab("stop", job.id).stdout
    same = len(metrics(cluster, job.id))
    resumed = start("--resume", job.id, "--nodes", "2", f"train.steps={same + 10}", step=0)
    assert resumed.ends(180) == 0 and f"going on from step {same}" in resumed.text(), resumed.text()
    undisturbed = start(*options, f"train.steps={same + 10}", file="llama.toml", step=0)
    assert undisturbed.ends(300) == 0, undisturbed.text()
    found, wanted = ([line["loss"] for line in metrics(cluster, each.id)] for each in (job, undisturbed))
    assert found[:same] == wanted[:same]
    assert len(found) == same + 10 and found[same:] == pytest.approx(wanted[same:], rel=2e-5)


def test_an_image_that_is_not_there_is_named(cluster: Project) -> None:
    """The verbs' own pod has it, too, and waits for it first."""
    image = "trainyard.local/none:1"
    refused = cluster.fab("train", "job.toml", "--inventory", other_inventory(cluster, image), code=1, timeout=180)
    assert re.search(rf"does not run after \d+ s: image {image}: \w+", refused.stderr), refused.stderr
    assert "Traceback" not in refused.stderr
    assert cluster.fab("jobs").returncode == 0, "with the right image again"


def test_the_kubelet_and_the_api_may_be_away_while_a_job_trains(cluster: Project, start: Start) -> None:
    job = start(ENDLESS)
    os.kill(process(cluster, "node3", r"/usr/local/bin/kubelet "), signal.SIGKILL)
    server = process(cluster, "node1", r"/usr/local/bin/kube-apiserver ")
    os.kill(server, signal.SIGSTOP)
    try:
        step = metrics(cluster, job.id)[-1]["step"]
        time.sleep(30)
        assert metrics(cluster, job.id)[-1]["step"] > step
        asked = cluster.fab("jobs", code=1).stderr
        assert len(asked.splitlines()) == 1 and "Traceback" not in asked, asked
    finally:
        os.kill(server, signal.SIGCONT)
    until(lambda: cluster.fab("jobs", code=None).returncode == 0, 60, "the API answers again")
    assert (job.state()["state"], job.state()["attempt"]) == ("RUNNING", 1)
    step = metrics(cluster, job.id)[-1]["step"]
    job.reaches(step + 20, 60)  # who followed it follows it again
    assert "is in the checkpoint" in cluster.fab("stop", job.id).stdout


@pytest.mark.soak
@pytest.mark.parametrize("name", ["worker-0", "master-0"])
def test_a_machine_gone_for_good_is_gone_on_without(cluster: Project, start: Start, name: str) -> None:
    """Also that of the first pod, though no other machine is free: another pod makes place for it."""
    job = start(ENDLESS, "checkpoint.every=20", "--restarts", "4", step=30)
    machine = machine_of(cluster, f"{job.id}-{name}")
    if machine == "node1":  # it has the control plane: another pod's then
        machine = next(
            found
            for each in ("worker-0", "worker-1", "master-0")
            if (found := machine_of(cluster, f"{job.id}-{each}")) != "node1"
        )
    kill_machine(cluster, machine)
    trains_again(cluster, job, 2, MACHINE_SECONDS)
    record = state(cluster, job.id)
    assert len(record["nodes"]) == 2 and machine not in record["nodes"], record
    until(lambda: cluster.fab("jobs", code=None).returncode == 0, 90, "the verbs' pod is on another machine")
    cluster.fab("stop", job.id, "--now")
    cluster.fab("up", "--yes", timeout=300)
    cluster.fab("wait")
    assert "Ready" in kubectl(cluster, "get", "node", machine)


@contextmanager
def without_operator(project: Project) -> Iterator[None]:
    """No pod is made in place of another one meanwhile."""
    scale = ["--namespace", training_operator.NAMESPACE, "scale", "deployment", training_operator.NAME]
    kubectl(project, *scale, "--replicas=0")
    try:
        pods = ["--namespace", training_operator.NAMESPACE, "get", "pods", "--output=name"]
        until(lambda: not kubectl(project, *pods), 60, "the operator has ended")
        yield
    finally:
        kubectl(project, *scale, "--replicas=1")


def test_jobs_that_wait_together_do_not_hold_machines_that_the_other_one_lacks(
    cluster: Project, tmp_path: Path
) -> None:
    """A job of three pods has two machines, and waits; one of two pods waits as well. The third machine is free again
    while there is no pod that the first one could place there: had the second one a pod there, both would wait for
    ever."""
    (tmp_path / "work").mkdir()

    def launched(name: str, nodes: int, command: str) -> str:
        words = ["launch", "--workdir", str(tmp_path / "work"), "--name", name, "--nodes", str(nodes), "--queue"]
        started = cluster.fab(*words, "--detach", "--", "sh", "-c", command).stdout
        found = re.search(rf"^{name}-\d+", started, re.M)
        assert found, started
        return found[0]

    def machines(job: str) -> dict[str, str]:
        """Of each of its pods; empty: none."""
        columns = "--output=custom-columns=NAME:.metadata.name,NODE:.spec.nodeName"
        lines = kubectl(cluster, "get", "pods", f"--selector=trainyard.dev/job={job}", "--no-headers", columns)
        return {name: "" if node == "<none>" else node for name, node in map(str.split, lines.splitlines())}

    busy = launched("busy", 1, "sleep 3600")
    until(lambda: state(cluster, busy)["state"] == "RUNNING", 90, f"{busy} runs")
    (taken,) = machines(busy).values()
    large, small = launched("large", 3, "sleep 1"), launched("small", 2, "sleep 1")
    until(lambda: sorted(map(bool, machines(large).values())) == [False, True, True], 60, f"{large} has two machines")
    waits = {job["id"]: job["reason"] for job in json.loads(cluster.fab("jobs", "--json").stdout)}
    assert f"3 busy with {busy} (1), {large} (2)" in waits[small], waits
    kubectl(cluster, "cordon", taken)
    try:
        cluster.fab("stop", busy, "--now")
        with without_operator(cluster):
            (missing,) = (name for name, machine in machines(large).items() if not machine)
            kubectl(cluster, "delete", "pod", missing)
            kubectl(cluster, "uncordon", taken)
            time.sleep(10)
            assert not any(machines(small).values()), "it would never get another one"
    finally:
        kubectl(cluster, "uncordon", taken)
    for job in (large, small):
        until(lambda job=job: state(cluster, job)["state"] == "SUCCEEDED", 180, f"{job} has its turn")  # type: ignore[misc]


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_a_managed_job_gets_its_machine_again_and_ends_as_if_nothing_had_been(cluster: Project, tmp_path: Path) -> None:
    """Its manager is killed as well, in between, and another one takes its place."""
    runs = shared(cluster) / "runs"
    expected = managed_jobs.undisturbed(cluster, runs, tmp_path)
    job = Managed.begun(cluster, runs, tmp_path / "first")
    machines = {machine_of(cluster, f"{job.id}-worker-{number}") for number in (0, 1)}
    (lost, *_) = sorted(machines - {"node1"})  # it has the control plane
    kill_machine(cluster, lost)
    job.loses_its_manager(lost)
    job.ends_as(expected, lost)
    job.was_moved_back(lost)
    until(lambda: not parts(cluster, job.id), GONE_SECONDS, "nothing of the job is left")
    assert "Ready" in kubectl(cluster, "get", "node", lost)


@pytest.mark.soak
def test_hugging_faces_trainer_runs_unchanged_and_goes_on_from_its_checkpoint(cluster: Project, tmp_path: Path) -> None:
    """Here, as it takes long: each node imports transformers."""
    user_programs.check_finetune(cluster, user_programs.with_transformers(tmp_path / "work"))
