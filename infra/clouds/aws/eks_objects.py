"""What a new EKS cluster needs inside, as Kubernetes objects: what makes GPUs and EFA cards resources that a pod asks
for, the file system as a volume, and the place of the jobs. A pure function of the settings and the file system.

EKS's image has driver and EFA, and EKS has no add-on for either plugin. Both are plain DaemonSets, rendered here
instead of by Helm, which the operator's machine would have to have.
"""

from __future__ import annotations

from typing import Any

from infra import job_account, training_operator
from infra.clouds.aws import eks, lustre, machine_types
from infra.config.settings import Settings

NVIDIA_PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.17.4"
EFA_PLUGIN = "public.ecr.aws/eks/aws-efa-k8s-device-plugin:v0.5.7"
DRIVER = "fsx.csi.aws.com"
VOLUME = "trainyard-fsx"
_PLUGINS = "/var/lib/kubelet/device-plugins"

Object = dict[str, Any]
"""A Kubernetes object as its manifest has it."""


def objects(settings: Settings, file_system: str, dns_name: str, mount_name: str) -> list[Object]:
    """In the order of their creation. `file_system`: FSx's id of it; a volume is mounted by the other two."""
    machine = machine_types.of(settings)
    found = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": eks.NAMESPACE}},
        *job_account.objects(eks.NAMESPACE, eks.SERVICE_ACCOUNT),
        _volume(file_system, dns_name, mount_name),
        _claim(),
        _plugin("nvidia-device-plugin", NVIDIA_PLUGIN, env=[{"name": "FAIL_ON_INIT_ERROR", "value": "true"}]),
    ]
    if machine.efa_cards:
        found.append(_plugin("efa-device-plugin", EFA_PLUGIN, folders={"infiniband": "/dev/infiniband"}, on_host=True))
    return found


def operator() -> list[Object]:
    """Kubeflow's training operator, which makes pods of a PyTorchJob."""
    return training_operator.objects()


def _volume(file_system: str, dns_name: str, mount_name: str) -> Object:
    """Retain: Pulumi has the file system, and Kubernetes is never to delete it."""
    source = {
        "driver": DRIVER,
        "volumeHandle": file_system,
        "volumeAttributes": {"dnsname": dns_name, "mountname": mount_name},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": VOLUME},
        "spec": {
            "capacity": {"storage": f"{lustre.GB}Gi"},
            "accessModes": ["ReadWriteMany"],
            "mountOptions": ["flock"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": eks.NAMESPACE, "name": eks.CLAIM},
            "csi": source,
        },
    }


def _claim() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": eks.CLAIM, "namespace": eks.NAMESPACE},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": VOLUME,
            "resources": {"requests": {"storage": f"{lustre.GB}Gi"}},
        },
    }


def _plugin(
    name: str,
    image: str,
    *,
    env: list[dict[str, str]] | None = None,
    folders: dict[str, str] | None = None,
    on_host: bool = False,
) -> Object:
    """A DaemonSet on the nodes with GPUs. `folders`: of the host, beside the kubelet's for plugins, by their names."""
    mounted = {"plugins": _PLUGINS, **(folders or {})}
    container = {
        "name": name,
        "image": image,
        "env": env or [],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounted.items()],
    }
    labels = {"app.kubernetes.io/name": name}
    pod = {
        "automountServiceAccountToken": False,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"trainyard/nodes": eks.GPU_GROUP},
        "tolerations": [{"key": eks.GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "hostNetwork": on_host,
        "containers": [container],
        "volumes": [{"name": volume, "hostPath": {"path": path}} for volume, path in mounted.items()],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
