"""What the modules of aws-eks agree on: versions, names, and the small machines beside those with GPUs.

Versions are pinned together: an add-on is made for a minor version of Kubernetes. `fab check --account` asks EKS
whether it still has them.
"""

from __future__ import annotations

from infra.clouds.aws.names import named
from infra.clouds.aws.place import EKS_END
from infra.config.settings import Settings
from infra.machine import MachineType

CLUSTER = "aws-eks"
"""The kind of cluster."""
VERSION = "1.35"
"""Of Kubernetes. EKS supports it at the standard price until 27 March 2027 (https://endoflife.date/amazon-eks)."""
ADDONS = {
    "vpc-cni": "v1.22.4-eksbuild.3",
    "kube-proxy": "v1.35.3-eksbuild.18",
    "eks-pod-identity-agent": "v1.3.10-eksbuild.3",
    "coredns": "v1.13.2-eksbuild.11",
    "aws-fsx-csi-driver": "v1.8.0-eksbuild.1",
}
BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
"""Add-ons that a node needs to become ready; the others need a node to run on."""
SYSTEM = MachineType(name="m7i.large", cores=1, memory_gb=8)
"""Type of the system nodes: CoreDNS, the file system's driver and the training operator run there."""
SYSTEM_NODES = 2
"""Two, as CoreDNS runs twice, on nodes of different zones."""
SYSTEM_DISK_GB = 50
IMAGE = f"/aws/service/eks/optimized-ami/{VERSION}/amazon-linux-2023/x86_64/nvidia/recommended/image_id"
"""The SSM parameter that names EKS's newest image with NVIDIA's driver and EFA: nodes with GPUs boot it."""
SYSTEM_GROUP, GPU_GROUP = "system", "gpus"
"""Names of the two node groups."""
GPU = "nvidia.com/gpu"
"""Kubernetes' name of the resource, and of the taint that keeps all other pods from these nodes."""
NAMESPACE = "trainyard"
SERVICE_ACCOUNT = "trainer"
CLAIM = "fsx"
"""The persistent volume claim of the shared file system."""
SHARED_DIR = "/fsx"
END = EKS_END.removeprefix("-")
LOG_DAYS = 30
KEY_DAYS = 7
"""Days that KMS keeps a deleted key, unused and unbilled; the least that it takes."""
SKU, KEY_SKU, IMAGES_SKU = "eks-cluster", "kms-key-month", "ecr-gb-month"
"""In the table of prices: the control plane, a key, a GB of container images."""


def cluster_name(settings: Settings) -> str:
    """EKS's name of the cluster, unique by the stack's id; EKS takes 100 characters. With an end of its own, as the
    audit knows resources in the state by their ids, which for some kinds are names."""
    return named(settings, END)


def log_group(name: str) -> str:
    """Where EKS writes the control plane's logs; the name is EKS's own."""
    return f"/aws/eks/{name}/cluster"
