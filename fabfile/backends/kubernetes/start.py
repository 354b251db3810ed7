"""Start a job on Kubernetes: what a dry run shows of it, whether there are machines, its record and its PyTorchJob, or
its TrainJob."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import yaml
from invoke.exceptions import Exit

from fabfile import launchers
from fabfile.backends.base import CannotStart
from fabfile.backends.kubernetes import jobs, pod_template, pods, pytorchjob, trainjob
from fabfile.backends.kubernetes.api import Api, Object
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.backends.kubernetes.pod_template import PodJob
from fabfile.backends.slurm import start as as_slurm
from fabfile.backends.ssh import start as over_ssh
from fabfile.backends.ssh.head import Head
from fabfile.backends.submission import Submission, Submitted
from fabfile.container.repository import is_named
from fabfile.launchers import KUBERNETES, HeadValues, Launch, LaunchError, plans
from infra.inventory import JobKind, KubeCluster, SshCluster

_GONE_SECONDS = 75.0  # for the pods of a job that is resumed to go
_SEEN_SECONDS = 10.0
_UNSEEN = "specified trainingRuntime must be created before the TrainJob is created"
"""What Trainer says of a TrainJob whose TrainingRuntime it does not know.
https://github.com/kubeflow/trainer/blob/v2.3.0/pkg/runtime/core/trainingruntime.go"""
_POLL = 0.3
_NAME = r"[a-z]([a-z0-9-]*[a-z0-9])?"
_LONGEST_NAME = {"PyTorchJob": 50, "TrainJob": 40}
"""Kubernetes names a job's pods and services ID-worker-N, with 63 characters at most; a TrainJob's pods
ID-node-0-N-XXXXX."""
_KINDS: dict[JobKind, list[str]] = {"PyTorchJob": ["PyTorchJob"], "TrainJob": ["TrainJob", "TrainingRuntime"]}
"""What a job has of its own besides secrets and pods, in the order in which it is deleted."""
_VARIABLES = """
# found by the supervisor, which runs in the first pod, when the pods have met: $NODES, the machines that they are on;
# $MASTER_ADDR, the address of the first; $MASTER_PORT, a free port there; $INTERFACE, towards the other pods; $BEGAN,
# the job's start without its pauses (where the machines have a price). added in every pod: what
# /etc/trainyard/runtime.env says (tcmalloc), RANK and LOCAL_RANK, the rank's cores of a NUMA node.
"""


def check(cluster: KubeCluster, submission: Submission) -> None:
    """Exit 2 for what Kubernetes cannot run."""
    if submission.launcher not in ("", KUBERNETES):
        raise Exit(
            f"--launcher {submission.launcher}: Kubernetes starts the jobs of this cluster: leave it out", code=2
        )
    name = submission.begun.id if submission.begun else submission.name
    longest = _LONGEST_NAME[cluster.job_kind]
    if not re.fullmatch(_NAME, name) or len(name) > longest:
        allowed = f"at most {longest} letters a-z, digits and '-', a letter first: rename its file, or --name"
        raise Exit(f"{name}: the name of a job on Kubernetes must be {allowed}", code=2)
    if not is_named(cluster.image):
        raise Exit(f"{cluster.name}: image = {cluster.image!r}: has neither tag nor digest: which image is it?", code=2)


def launch_of(view: SshCluster, submission: Submission) -> Launch:
    """The job on as many machines as it asks for; which ones Kubernetes chooses."""
    return as_slurm.launch_of(view, submission)


def shown(cluster: KubeCluster, view: SshCluster, submission: Submission) -> str:
    """The job as it is applied, and what the ranks run. Exit 2 for what cannot work."""
    check(cluster, submission)
    launch = launch_of(view, submission)
    try:
        plan = plans.plan(KUBERNETES, launch, HeadValues())
    except LaunchError as error:
        raise Exit(str(error), code=2) from None
    manifest = yaml.safe_dump_all(_objects(cluster, _job(launch)), sort_keys=False, width=110, default_flow_style=None)
    ranks = launchers.shown(plan, where="the environment of each rank")
    return f"{manifest}\n{ranks}\n{_VARIABLES}{_restarts(submission)}{over_ssh.job_file(launch, submission)}"


def _restarts(submission: Submission) -> str:
    """What the supervisor does after a loss or a failure, as a comment."""
    if not submission.restarts:
        return "# a rank, pod or machine that is lost ends the job (--restarts N)\n"
    where = "from the newest whole checkpoint" if submission.job else "in its directory as it was left"
    of_what = "lost rank, pod or machine" if submission.after_losses_only else "loss or failure"
    default = ", the default (--restarts 0: never)" if submission.after_losses_only else ""
    return f"# after a {of_what} the job goes on {where}, up to {submission.restarts} times{default}\n"


def _objects(cluster: KubeCluster, job: PodJob) -> tuple[Object, ...]:
    """What Kubernetes is to have of a job, in the order in which it is applied. The last one is the job itself."""
    if cluster.job_kind == "TrainJob":
        return trainjob.rendered(cluster, job)
    return (pytorchjob.rendered(cluster, job),)


def refuse_busy(wanted: int, there: int, taken: dict[str, int]) -> None:
    """CannotStart if other jobs have, or wait for, so many of the machines that too few are left."""
    free = max(0, there - sum(taken.values()))
    if free < wanted:
        holders = ", ".join(f"{job} ({count})" for job, count in sorted(taken.items()))
        raise CannotStart(f"{free} of {there} machines free, {wanted} wanted; busy with {holders}")


def create(
    api: Api,
    cluster: KubeCluster,
    head: Head,
    submission: Submission,
    taken: Sequence[str],
    never_beside: tuple[str, ...] = (),
) -> Submitted:
    """Create the job's number and directory on the head, then its objects; its id must not be in `taken`.
    `never_beside`: as in PodJob. If the API refuses it, Exit 1, and nothing is left of it."""
    spec = over_ssh.spec_of(head, submission, taken)
    price = launch_of(head.cluster, submission).usd_per_hour
    spec = replace(spec, launcher=KUBERNETES, cluster=head.cluster, count=submission.nodes)
    answer = over_ssh.ask_to_create(head, replace(spec, price_per_hour=price), secrets={})
    launch = replace(launch_of(head.cluster, submission), id=answer["id"], code=head.folder)
    job = _job(replace(launch, run_dir=f"{spec.runs}/{launch.id}"), never_beside)
    try:
        _apply(api, cluster, job, over_ssh.secrets(submission))
    except KubeError as error:
        head.ask("kube-over", job.run_dir, "undo")
        raise Exit(f"{error}\nthe job was not started", code=1) from None
    machines = "1 machine" if job.nodes == 1 else f"{job.nodes} machines"
    return Submitted(job.id, answer["log"], f"{machines}, as the {cluster.job_kind} {job.id}")


def _job(launch: Launch, never_beside: tuple[str, ...] = ()) -> PodJob:
    return PodJob(
        id=launch.id,
        nodes=len(launch.nodes),
        run_dir=launch.run_dir,
        program=f"{launch.code}/launch",
        all_get_secrets=launch.program is not None,
        never_beside=never_beside,
    )


def _apply(api: Api, cluster: KubeCluster, job: PodJob, secrets: Mapping[str, str]) -> None:
    """Apply the job, in place of one that a resumed job had, and before it what it needs: its secrets, and a TrainJob's
    TrainingRuntime. These belong to it, and are deleted with it. KubeError."""
    remove(api, cluster, job.id)
    *needed, asked = _objects(cluster, job)
    if secrets:
        needed.append(pod_template.secret(cluster, job.id, secrets))
    try:
        for one in needed:
            api.apply(one)
        made = _apply_seen(api, asked)
        for one in needed:
            api.apply(pod_template.owned(one, made))
    except KubeError:
        for one in (asked, *needed):
            api.delete(one["kind"], job.id)
        raise


def _apply_seen(api: Api, asked: Object) -> Object:
    """Apply a job. Trainer refuses a TrainJob for some moments after its TrainingRuntime is made: it asks a copy of the
    API's objects, which has not got that one yet. KubeError."""
    deadline = time.monotonic() + _SEEN_SECONDS
    while True:
        try:
            return api.apply(asked)
        except KubeError as error:
            if _UNSEEN not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(_POLL)


def remove(api: Api, cluster: KubeCluster, job: str) -> None:
    """Delete a job, if it is there, and wait until it, what belongs to it and its pods are gone. KubeError."""
    kinds = [kind for kind in _KINDS[cluster.job_kind] if api.delete(kind, job)]
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := api.list("Pod", {pods.JOB: job})) or any(api.get(kind, job) for kind in kinds):
        jobs.end_overdue(api, left)
        if time.monotonic() > deadline:
            names = ", ".join(str(pod["metadata"]["name"]) for pod in left) or job
            raise KubeError(f"{job}: its earlier pods are not gone after {_GONE_SECONDS:.0f} s: {names}")
        time.sleep(_POLL)
