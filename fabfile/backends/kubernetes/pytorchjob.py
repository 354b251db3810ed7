"""A job as Kubeflow's PyTorchJob (kubeflow.org/v1): a pure function, with which a dry run prints what is applied.

The operator makes the pods, makes one anew that was lost, and counts the job as done when its first pod (Master) has
ended. All else is our supervisor's, which runs in that pod: what the operator sets for torchrun (MASTER_ADDR and so on)
is not used. https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fabfile.backends.kubernetes import pods
from fabfile.backends.kubernetes.pods import EFA, GPU, JOB, STACK
from fabfile.launchers import SYSTEM_PYTHON
from infra.inventory import KubeCluster

Object = dict[str, Any]

CONTAINER = "pytorch"
"""The container of a pod that runs the job; the operator wants this name."""
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


def rendered(cluster: KubeCluster, job: PodJob) -> Object:
    """The PyTorchJob."""
    replicas = {"Master": _replicas(cluster, job, 1, is_master=True)}
    if job.nodes > 1:
        replicas["Worker"] = _replicas(cluster, job, job.nodes - 1, is_master=False)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job.id, "namespace": cluster.namespace, "labels": _labels(cluster, job.id)},
        "spec": {
            "nprocPerNode": "1",  # a text; its default, auto, would be the pod's number of cores
            "runPolicy": {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": KEPT_DAYS * 86400},
            "pytorchReplicaSpecs": replicas,
        },
    }


def secret(cluster: KubeCluster, job: str, values: Mapping[str, str], owner: Object | None = None) -> Object:
    """The job's secrets; with its PyTorchJob as `owner` they are deleted with it."""
    metadata: Object = {"name": job, "namespace": cluster.namespace, "labels": _labels(cluster, job)}
    if owner is not None:
        same = {key: owner[key] for key in ("apiVersion", "kind")}
        metadata["ownerReferences"] = [{**same, "name": job, "uid": owner["metadata"]["uid"]}]
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def _labels(cluster: KubeCluster, job: str) -> dict[str, str]:
    return {STACK: cluster.name, JOB: job}


def _replicas(cluster: KubeCluster, job: PodJob, count: int, *, is_master: bool) -> Object:
    """Pods of one kind. ExitCode: a code up to 127 is for good, and after a higher one, a signal's, there is a new
    pod."""
    template = {"metadata": {"labels": _labels(cluster, job.id)}, "spec": _pod(cluster, job, is_master=is_master)}
    return {"replicas": count, "restartPolicy": "ExitCode", "template": template}


def _pod(cluster: KubeCluster, job: PodJob, *, is_master: bool) -> Object:
    shared = pods.common(cluster)
    memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    one_per_machine = {
        "labelSelector": {"matchExpressions": [{"key": JOB, "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        **shared,
        "volumes": [*shared["volumes"], memory],
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "tolerations": [{"key": GPU, "operator": "Exists"}, *pods.gone_quickly()],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one_per_machine]}},
        "containers": [_container(cluster, job, is_master=is_master)],
    }


def _container(cluster: KubeCluster, job: PodJob, *, is_master: bool) -> Object:
    environment: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _FIELDS.items()
    ]
    environment.append({"name": "HOME", "value": pods.home(cluster)})
    container = {
        "name": CONTAINER,
        "image": cluster.image,
        "command": [SYSTEM_PYTHON, "-I", job.program, "pod", job.run_dir],
        "env": environment,
        "resources": _resources(cluster),
        "volumeMounts": [*pods.mounts(cluster), {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if is_master or job.all_get_secrets:  # rank 0 alone talks to a tracker
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
