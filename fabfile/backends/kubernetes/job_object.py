"""The object of a job, a PyTorchJob or a TrainJob: how many pods it has, and whether it is over. Pure functions.

A TrainJob whose first pod has ended well is Complete, a PyTorchJob then has Succeeded; both have Failed.
https://github.com/kubeflow/trainer/blob/v2.3.0/pkg/apis/trainer/v1alpha1/trainjob_types.go
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fabfile.backends.kubernetes.reasons import line

Object = dict[str, Any]

_STATES = {"Succeeded": "SUCCEEDED", "Complete": "SUCCEEDED", "Failed": "FAILED", "Suspended": "SUSPENDED"}
"""Condition -> state, in the order in which they are looked for."""


def count(job: Object) -> int:
    """How many pods it has: of a TrainJob as it says itself, which ours do, or else as many as Trainer has counted."""
    spec, status = job.get("spec") or {}, job.get("status") or {}
    if "runtimeRef" in spec:
        counted = sum(int(each.get("active") or 0) for each in status.get("jobsStatus") or ())
        return int((spec.get("trainer") or {}).get("numNodes") or counted or 1)
    replicas: Mapping[str, Any] = spec.get("pytorchReplicaSpecs") or {}
    return sum(int(each.get("replicas") or 1) for each in replicas.values())


def state(job: Object) -> str:
    """SUCCEEDED, FAILED, SUSPENDED, RUNNING or PENDING."""
    found = next((state for kind, state in _STATES.items() if _condition(job, kind) is not None), "")
    return found or ("RUNNING" if _is_running(job) else "PENDING")


def is_over(job: Object) -> bool:
    """Whether it has ended, well or not."""
    return state(job) in ("SUCCEEDED", "FAILED")


def has_succeeded(job: Object) -> bool:
    """Whether its first pod has ended well."""
    return state(job) == "SUCCEEDED"


def failed(job: Object) -> str | None:
    """What Kubernetes says of its failure, which may be nothing; None if it has not failed."""
    return _condition(job, "Failed")


def _is_running(job: Object) -> bool:
    """A TrainJob has no condition for it: Trainer counts the pods that are ready."""
    jobs = (job.get("status") or {}).get("jobsStatus") or ()
    return _condition(job, "Running") is not None or any(each.get("ready") for each in jobs)


def _condition(job: Object, kind: str) -> str | None:
    """The message of a condition that is true; None if it is not."""
    for one in (job.get("status") or {}).get("conditions") or ():
        if one.get("type") == kind and one.get("status") == "True":
            return line(str(one.get("message") or ""))
    return None
