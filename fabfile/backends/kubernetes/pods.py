"""The pods of a cluster as Kubernetes' objects: what those of a job and the head's have in common, and the head's."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from infra.inventory import KubeCluster

Object = dict[str, Any]

HEAD = "trainyard-head"
"""Name of the head's Deployment, and of its pods' label `app`."""
CONTAINER = "head"
TRAINER_NODE = "node"
"""What Kubeflow Trainer calls the pods that train, and their container."""
SPEC = "trainyard.dev/spec"
"""Label of the head's Deployment and pods: the hash of what they were made of. A pod of another one is not used."""
STACK, JOB = "trainyard.dev/stack", "trainyard.dev/job"
"""Labels of all that is made here: the cluster's name, and the job's id."""
DATA = "/data"
"""Where the published jobs have their token sets: in pods a folder of the shared volume."""
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
_SLEEP = 'mkdir -p "$HOME"; trap "exit 0" TERM; while :; do sleep 3600 & wait "$!"; done'


def home(cluster: KubeCluster) -> str:
    """The home directory in every pod, on the shared volume: what one pod puts there the next one finds."""
    return f"{cluster.shared_dir.rstrip('/')}/.trainyard/home"


def common(cluster: KubeCluster) -> Object:
    """The part of a pod's specification that all of ours have."""
    volumes: list[Object] = [{"name": "shared", "persistentVolumeClaim": {"claimName": cluster.shared_claim}}]
    volumes += [
        {"name": f"software-{number}", "hostPath": {"path": path, "type": "Directory"}}
        for number, path in enumerate(_software(cluster))
    ]
    account = {"serviceAccountName": cluster.service_account} if cluster.service_account else {}
    return {**account, "enableServiceLinks": False, "volumes": volumes}


def mounts(cluster: KubeCluster) -> list[Object]:
    """Where a container has those volumes."""
    software = [
        {"name": f"software-{number}", "mountPath": path, "readOnly": True}
        for number, path in enumerate(_software(cluster))
    ]
    shared = {"name": "shared", "mountPath": cluster.shared_dir.rstrip("/")}
    return [shared, {"name": "shared", "mountPath": DATA, "subPath": DATA.strip("/")}, *software]


def head(cluster: KubeCluster) -> Object:
    """The Deployment of the head: one pod that waits for the operator's commands. It has no rights on the API."""
    container = {
        "name": CONTAINER,
        "image": cluster.image,
        "command": ["/bin/sh", "-c", _SLEEP],
        "env": [{"name": "HOME", "value": home(cluster)}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": mounts(cluster),
    }
    pod = {
        **common(cluster),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"key": GPU, "operator": "Exists"}, *gone_quickly()],
        "containers": [container],
    }
    digest = hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:16]
    labels = {"app": HEAD, STACK: cluster.name, SPEC: digest}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": HEAD, "namespace": cluster.namespace, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": HEAD}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def gone_quickly() -> list[Object]:
    """Tolerations with which a pod is given up 10 s after its machine is found dead, not after Kubernetes' 300."""
    return [
        {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
        for why in ("unreachable", "not-ready")
    ]


def _software(cluster: KubeCluster) -> list[str]:
    return [path.rstrip("/") for path in cluster.software.split(",") if path]
