"""Jobs as TrainJobs on local nodes with Kubernetes and Kubeflow Trainer v2, which whoever has it names: the same as a
PyTorchJob's, also after a pod or a machine is lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import kubeflow_trainer
import pytest
import same_losses
from jobs_on_kubernetes import (
    AGAIN_SECONDS,
    MACHINE_SECONDS,
    check_quota,
    kill_machine,
    kill_pod,
    kubectl,
    kubernetes_of_three,
    machine_of,
    metrics,
    state,
    trains_again,
)
from jobs_on_nodes import ENDLESS, GONE_SECONDS, Job, Start, parts
from polling import until
from project import Project

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    kubeflow_trainer.folder()
    with kubernetes_of_three(make_shared_project()) as project:
        yield kubeflow_trainer.with_trainer(project)


def pod_of(project: Project, job: str, number: int) -> str:
    """The name of a pod of a job, by its number."""
    chosen = f"--selector=trainyard.dev/job={job},batch.kubernetes.io/job-completion-index={number}"
    return kubectl(project, "get", "pods", chosen, "--output=jsonpath={.items[0].metadata.name}")


def owned(project: Project) -> str:
    """What there is of all jobs."""
    kinds = "trainjobs,trainingruntimes,jobsets,jobs,secrets"
    return kubectl(project, "get", kinds, "--selector=trainyard.dev/job", "--output=name")


def test_the_pre_flight_measures_by_a_trainjob(cluster: Project) -> None:
    checked = cluster.fab("check").stdout
    assert "Kubeflow Trainer would take a TrainingRuntime of 3 pods" in checked
    assert re.search(r"^7 pass, 0 warn, 0 fail", checked, re.MULTILINE), checked
    until(lambda: owned(cluster) == "", 30, "nothing is left of the job that measured")


def test_a_llama_in_shards_on_streamed_text_from_its_file_to_its_text(cluster: Project, start: Start) -> None:
    job = start(step=0, file="llama.toml")
    assert job.ends(180) == 0, job.text()
    assert f"{job.id}: 3 ranks on 3 machines, as the TrainJob {job.id}" in job.text() and ": fsdp, " in job.text()
    assert (job.state()["state"], job.state()["attempt"]) == ("SUCCEEDED", 1)
    print(f"submit to first step: {metrics(cluster, job.id)[0]['time'] - job.state()['created']:.1f} s")
    until(lambda: parts(cluster, job.id) == [], GONE_SECONDS, "nothing of the job is left")
    condition = "--output=jsonpath={.status.conditions[?(@.type=='Complete')].status}"
    assert kubectl(cluster, "get", "trainjob", job.id, condition) == "True"
    assert cluster.fab("sample", job.id, "--prompt", "the ", "--tokens", "20").stdout.startswith("the ")


def test_what_cannot_start_says_why_in_one_line_and_is_stopped(cluster: Project, start: Start) -> None:
    """Machines that another job has, a quota that is too small, which Kubernetes' own Job says."""
    first = start(ENDLESS)
    busy = cluster.fab("train", "job.toml", code=1).stderr
    assert busy.startswith(f"0 of 3 machines free, 3 wanted; busy with {first.id} (3)"), busy
    waiting = start("--queue", step=0)
    until(lambda: f"busy with {first.id} (3)" in str(waiting.state()["reason"]), 30, "it says who has the machines")
    cluster.fab("stop", first.id, "--now")
    assert waiting.ends(180) == 0, waiting.text()
    job = check_quota(cluster, start)
    until(lambda: parts(cluster, job.id) == [], GONE_SECONDS, "nothing of the job is left")


def test_another_ones_trainjob_is_shown_as_theirs(cluster: Project) -> None:
    manifest = cluster.fab("train", "job.toml", "--dry-run", "--nodes", "2").stdout.partition("\n\n")[0]
    theirs = re.sub(r"trainyard.dev/\w+: [^,}\n]+", "app: other", manifest.replace("job-N", "other"))
    kubectl(cluster, "apply", "-f", "-", stdin=theirs.replace("app: other, app: other", "app: other"))
    try:
        shown = re.compile(r"^- +other +\w+ +2 ", re.MULTILINE)
        until(lambda: shown.search(cluster.fab("jobs").stdout), 30, "it is among the jobs")
    finally:
        kubectl(cluster, "delete", "trainjob,trainingruntime", "other")


def test_a_stopped_job_goes_on_to_the_same_losses(cluster: Project, start: Start) -> None:
    options = ["train.min_lr=0.0006", "--nodes", "2"]
    job = start(ENDLESS, *options)
    same_losses.check_resumed(start, job, options, cluster.fab("stop", job.id).stdout, metrics)


def test_lost_pods_come_again_and_the_losses_are_those_of_an_undisturbed_job(cluster: Project, start: Start) -> None:
    def lose(job: Job) -> None:
        for attempt, number in enumerate((1, 0), start=2):
            kill_pod(cluster, pod_of(cluster, job.id, number))
            trains_again(cluster, job, attempt, AGAIN_SECONDS)

    same_losses.check_after_losses(start, lose, metrics)


@pytest.mark.parametrize("lost", ["another pod's", "the first pod's"])
def test_a_machine_gone_for_good_is_gone_on_without(cluster: Project, start: Start, lost: str) -> None:
    """The machine with the control plane gets no pod of the job, so no machine is free in the lost one's place. The
    first pod then gets the machine of the other one, which ends for it."""
    kubectl(cluster, "cordon", "node1")
    try:
        job = start(ENDLESS, "checkpoint.every=20", "--restarts", "6", "--nodes", "2", step=30)
        machine = machine_of(cluster, pod_of(cluster, job.id, int(lost == "another pod's")))
        kill_machine(cluster, machine)
        trains_again(cluster, job, 2, MACHINE_SECONDS)
        record = state(cluster, job.id)
        assert len(record["nodes"]) == 1 and machine not in record["nodes"], record
        until(lambda: cluster.fab("jobs", code=None).returncode == 0, 90, "the verbs' pod is on another machine")
    finally:
        kubectl(cluster, "uncordon", "node1")
    cluster.fab("stop", job.id, "--now")
    kubeflow_trainer.mend(cluster)
    assert "Ready" in kubectl(cluster, "get", "node", machine)
