"""The pods of a job, the same whichever kind of Kubeflow's makes them, and the job's secrets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fabfile.backends.kubernetes import pods, waiting
from fabfile.backends.kubernetes.pods import EFA, GPU, JOB, STACK
from fabfile.launchers import SYSTEM_PYTHON
from fabfile.remote.node_program import digest
from infra.inventory import KubeCluster
from node.checked_program import words

Object = dict[str, Any]

KEPT_DAYS = 7
"""Days after its end for which Kubernetes knows a job; its files stay."""
GRACE_SECONDS = 45
"""Between SIGTERM and SIGKILL for a pod: a rank ends its step and writes a checkpoint."""
HUGE_PAGES = "5120Mi"
"""Of 2 MiB, which EFA's provider takes at its start, on p4d and later."""
_FIELDS = {
    "TRAINYARD_POD": "metadata.name",
    "TRAINYARD_POD_IP": "status.podIP",
    "TRAINYARD_MACHINE": "spec.nodeName",
    "TRAINYARD_HOST_IP": "status.hostIP",
}
"""What a pod learns of itself when it starts, by Kubernetes' downward API."""


@dataclass(frozen=True, kw_only=True)
class PodJob:
    """A job as Kubernetes is asked for it."""

    id: str
    nodes: int
    """Machines, with a pod on each."""
    run_dir: str
    """The job's directory, on the shared volume."""
    program: str
    """The node program (see node/main.py), on the shared volume."""
    all_get_secrets: bool = False
    """Whether every pod gets the job's secrets: those of a user's program, and not a tracker's key."""
    never_beside: tuple[str, ...] = ()
    """Jobs: its pods are not placed while a pod of one of them is (waiting.py)."""


def labels(cluster: KubeCluster, job: str) -> dict[str, str]:
    """Of all that is made for a job."""
    return {STACK: cluster.name, JOB: job}


def owned(one: Object, owner: Object) -> Object:
    """An object that is deleted with `owner`, which the API has made."""
    same = {key: owner[key] for key in ("apiVersion", "kind")}
    reference = {**same, **{key: owner["metadata"][key] for key in ("name", "uid")}}
    return {**one, "metadata": {**one["metadata"], "ownerReferences": [reference]}}


def secret(cluster: KubeCluster, job: str, values: Mapping[str, str]) -> Object:
    """The job's secrets."""
    metadata: Object = {"name": job, "namespace": cluster.namespace, "labels": labels(cluster, job)}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def template(cluster: KubeCluster, job: PodJob, container: str, *, gets_secrets: bool) -> Object:
    """The template of pods. `container`: the name that the operator wants their container to have."""
    return {
        "metadata": {"labels": labels(cluster, job.id)},
        "spec": _pod(cluster, job, _container(cluster, job, container, gets_secrets=gets_secrets)),
    }


def _pod(cluster: KubeCluster, job: PodJob, container: Object) -> Object:
    shared = pods.common(cluster)
    memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    one_per_machine = {
        "labelSelector": {"matchExpressions": [{"key": JOB, "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    rules = [one_per_machine, *([waiting.rule(job.never_beside)] if job.never_beside else [])]
    return {
        **shared,
        "volumes": [*shared["volumes"], memory],
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "tolerations": [{"key": GPU, "operator": "Exists"}, *pods.gone_quickly()],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rules}},
        "containers": [container],
    }


def _container(cluster: KubeCluster, job: PodJob, name: str, *, gets_secrets: bool) -> Object:
    environment: list[Object] = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}} for variable, path in _FIELDS.items()
    ]
    environment.append({"name": "HOME", "value": pods.home(cluster)})
    container = {
        "name": name,
        "image": cluster.image,
        "command": [SYSTEM_PYTHON, "-I", *words(digest()), job.program, "pod", job.run_dir],
        "env": environment,
        "resources": _resources(cluster),
        "volumeMounts": [*pods.mounts(cluster), {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if gets_secrets:
        container["envFrom"] = [{"secretRef": {"name": job.id, "optional": True}}]
    if cluster.efa_per_worker:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}  # EFA pins the memory that it reads
    return container


def _resources(cluster: KubeCluster) -> Object:
    """What a pod asks for: all GPUs and EFA cards of its machine. CPUs and memory are not limited: no other job of
    ours is there."""
    requests, limits = {"cpu": "100m", "memory": "256Mi"}, {}
    if cluster.gpus_per_worker:
        limits[GPU] = str(cluster.gpus_per_worker)
    if cluster.efa_per_worker:
        limits |= {EFA: str(cluster.efa_per_worker), "hugepages-2Mi": HUGE_PAGES}
    return {"requests": {**requests, **limits}, **({"limits": limits} if limits else {})}
