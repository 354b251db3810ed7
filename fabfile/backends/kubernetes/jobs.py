"""A job's record beside what Kubernetes knows: why it waits, and that it is over although no supervisor has said so."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fabfile.backends.base import JobRecord, JobState, OtherJob
from fabfile.backends.kubernetes import job_object, pods, reasons, waiting
from fabfile.backends.kubernetes.api import Api
from infra.inventory import KubeCluster
from node.job import endings

Object = dict[str, Any]

_TO_CONFIRM = 10.0  # seconds for a machine to say that a pod has ended, after the time that the pod was given
_TO_APPLY = 60.0
"""Seconds after a job's record is made by which Kubernetes has its object."""


@dataclass(frozen=True)
class Seen:
    """What the API has of the jobs. To be asked before the records are read: what is over here has its record."""

    jobs: tuple[Object, ...]
    """All jobs of the cluster's kind (KubeCluster.job_kind) in the namespace."""
    pods: tuple[Object, ...]
    """The pods of our jobs."""
    events: tuple[Object, ...] = ()

    def job(self, id_: str) -> Object | None:
        """The object of our job of this name."""
        found = (job for job in self.jobs if job["metadata"]["name"] == id_ and _label(job, pods.JOB) == id_)
        return next(found, None)

    def pods_of(self, id_: str) -> list[Object]:
        """The pods of a job."""
        return [pod for pod in self.pods if _label(pod, pods.JOB) == id_]


@dataclass(frozen=True)
class Over:
    """How a job ended that has no record of its end."""

    state: JobState
    reason: str
    code: int = 1
    by: str = endings.MACHINES  # who has ended it


def look(api: Api, cluster: KubeCluster) -> Seen:
    """Ask the API. KubeError."""
    jobs, own = api.list(cluster.job_kind), api.list("Pod", {pods.STACK: cluster.name})
    there = Counter(_label(pod, pods.JOB) for pod in own)
    waits = any(reasons.phase(pod) == "Pending" for pod in own)
    ours = [job for job in jobs if _label(job, pods.STACK) == cluster.name]
    lacks = any(there[_label(job, pods.JOB)] < job_object.count(job) for job in ours)
    events = api.list("Event") if waits or lacks else []
    return Seen(tuple(jobs), tuple(pod for pod in own if _label(pod, pods.JOB)), tuple(events))


def merged(record: JobRecord, seen: Seen, now: float | None = None) -> JobRecord | Over:
    """The job as it is: its record with the reason why it waits, or how it has ended without one. `now`: Unix time."""
    if record.state.is_final:
        return record
    job, own = seen.job(record.id), seen.pods_of(record.id)
    if job is None:
        if (time.time() if now is None else now) - record.created < _TO_APPLY:
            return record
        why = "it is gone from Kubernetes: somebody has deleted it"
        return Over(JobState.FAILED, why, by=endings.SOMEBODY)
    if (said := job_object.failed(job)) is not None:
        why = reasons.failed(own)
        by = endings.PROGRAM if why.endswith(reasons.STARVED) else endings.MACHINES
        return Over(JobState.FAILED, why or said or "Kubernetes says that it failed", by=by)
    if job_object.has_succeeded(job):
        return Over(JobState.FAILED, "its first pod has ended, and its supervisor has not recorded how the job did")
    why = waiting.said(reasons.pending(own, seen.events, record.id, job_object.count(job)), record.id, seen.pods)
    if record.state == JobState.PENDING:
        return replace(record, reason=why or "its pods start")
    return replace(record, reason=why) if why else record


def taken(seen: Seen, ended: Sequence[str]) -> dict[str, int]:
    """How many machines each of our jobs has, or waits for; no two pods of them share one. `ended`: those that are over
    by their records, whose pods are about to go."""
    found = {}
    for job in seen.jobs:
        id_ = _label(job, pods.JOB)
        if id_ and id_ not in ended and not job_object.is_over(job):
            found[id_] = job_object.count(job)
    return found


def that_wait(seen: Seen, ended: Sequence[str]) -> list[tuple[str, int]]:
    """Our jobs that have not got all of their machines, oldest first, each with its number of pods."""
    have, wanted = waiting.placed(seen.pods), taken(seen, ended)
    ours = sorted((job for job in seen.jobs if _label(job, pods.JOB) in wanted), key=_created)
    found = [(_label(job, pods.JOB), job_object.count(job)) for job in ours]
    return [(id_, count) for id_, count in found if have[id_] < count]


def others(seen: Seen, stack: str) -> list[OtherJob]:
    """The jobs of the namespace that are none of this cluster's: somebody applied them by hand."""
    return [_other(job) for job in seen.jobs if _label(job, pods.STACK) != stack]


def _created(job: Object) -> str:
    """RFC 3339, which sorts as text."""
    return str(job["metadata"].get("creationTimestamp") or "")


def _other(job: Object) -> OtherJob:
    metadata, status = job["metadata"], job.get("status") or {}
    managers = [str(field.get("manager") or "") for field in metadata.get("managedFields") or ()]
    return OtherJob(
        id=str(metadata["name"]),
        user=next((name for name in managers if name), "somebody else"),
        name=str(metadata["name"]),
        state=job_object.state(job),
        nodes="",
        count=job_object.count(job),
        submitted=_seconds(metadata.get("creationTimestamp")) or 0.0,
        started=_seconds(status.get("startTime")),
        scheduler="kubernetes",
    )


def is_overdue(pod: Object, now: float | None = None) -> bool:
    """Whether a deleted pod should have been gone for a while: its machine, which is to confirm that, is dead. What ran
    there has ended by itself (files.LEASE). `now`: Unix time."""
    until = _seconds(pod["metadata"].get("deletionTimestamp"))  # the end of the time that it is given
    return until is not None and (time.time() if now is None else now) > until + _TO_CONFIRM


def end_overdue(api: Api, pods: Iterable[Object]) -> None:
    """Delete those of these pods at once whose machines are dead. KubeError."""
    for pod in pods:
        if is_overdue(pod):
            api.delete("Pod", str(pod["metadata"]["name"]), at_once=True)


def _label(one: Object, name: str) -> str:
    return str((one["metadata"].get("labels") or {}).get(name) or "")


def _seconds(text: object) -> float | None:
    """Unix time of an RFC 3339 time; None for anything else."""
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
