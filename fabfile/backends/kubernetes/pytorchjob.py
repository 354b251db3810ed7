"""A job as Kubeflow's PyTorchJob (kubeflow.org/v1): a pure function, with which a dry run prints what is applied.

The operator makes the pods, makes one anew that was lost, and counts the job as done when its first pod (Master) has
ended. All else is our supervisor's, which runs in that pod: what the operator sets for torchrun (MASTER_ADDR and so on)
is not used. https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
"""

from __future__ import annotations

from typing import Any

from fabfile.backends.kubernetes import pod_template
from fabfile.backends.kubernetes.pod_template import KEPT_DAYS, PodJob
from infra.inventory import KubeCluster

Object = dict[str, Any]

CONTAINER = "pytorch"
"""The container of a pod that runs the job; the operator wants this name."""


def rendered(cluster: KubeCluster, job: PodJob) -> Object:
    """The PyTorchJob."""
    replicas = {"Master": _replicas(cluster, job, 1, is_master=True)}
    if job.nodes > 1:
        replicas["Worker"] = _replicas(cluster, job, job.nodes - 1, is_master=False)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job.id, "namespace": cluster.namespace, "labels": pod_template.labels(cluster, job.id)},
        "spec": {
            "nprocPerNode": "1",  # a text; its default, auto, would be the pod's number of cores
            "runPolicy": {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": KEPT_DAYS * 86400},
            "pytorchReplicaSpecs": replicas,
        },
    }


def _replicas(cluster: KubeCluster, job: PodJob, count: int, *, is_master: bool) -> Object:
    """Pods of one kind. ExitCode: a code up to 127 is for good, and after a higher one, a signal's, there is a new
    pod."""
    gets_secrets = is_master or job.all_get_secrets  # rank 0 alone talks to a tracker
    template = pod_template.template(cluster, job, CONTAINER, gets_secrets=gets_secrets)
    return {"replicas": count, "restartPolicy": "ExitCode", "template": template}
