"""A small job on the Kubernetes of kube_cluster.py: its submission, its record, and what the API says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kube_cluster import Kube

from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.submission import Submission, Submitted
from fabfile.job_file import resolve
from node.job import files


def submission(**changes: Any) -> Submission:
    return replace(Submission(job=resolve("smoke", (), 2), nodes=2), **changes)


def started(backend: KubernetesBackend, **changes: Any) -> Submitted:
    return backend.submit(submission(**changes))


def run_dir(kube: Kube, job: str) -> Path:
    return Path(kube.cluster.shared_dir) / "runs" / job


def state(kube: Kube, job: str, **changes: Any) -> files.Record:
    """A job's record on the shared volume, changed as its supervisor does it."""
    path = run_dir(kube, job) / "state.json"
    record = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(record))
    return record


def waiting(reason: str, message: str) -> dict[str, Any]:
    status = {"name": "pytorch", "image": "i:1", "imageID": "", "restartCount": 0, "ready": False}
    return {"containerStatuses": [{**status, "state": {"waiting": {"reason": reason, "message": message}}}]}


def failure(message: str) -> bytes:
    return json.dumps({"status": "Failure", "reason": "InternalError", "message": message}).encode()


def unschedulable(message: str) -> dict[str, Any]:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [said]}


def warning(name: str, kind: str, about: str, message: str, when: str) -> dict[str, Any]:
    return {
        **{"apiVersion": "v1", "kind": "Event", "type": "Warning", "message": message, "lastTimestamp": when},
        **{"metadata": {"name": name}, "involvedObject": {"kind": kind, "name": about}},
    }


def conditioned(kube: Kube, job: str, kind: str, message: str = "") -> None:
    one = kube.objects[("PyTorchJob", job)]
    said = {"type": kind, "status": "True", "message": message, "reason": kind}
    kube.put({**one, "status": {"conditions": [said]}})
