"""A Kubernetes cluster as the programs on its head see it: a head, the pod that the operator's commands run in, and
machines that are given to a job when it starts. Those programs know SshCluster alone."""

from __future__ import annotations

from fabfile.remote.connection import NOWHERE
from infra.inventory import KubeCluster, Node, Queue, SshCluster

HEAD = "head"


def of(cluster: KubeCluster) -> SshCluster:
    """The view. Its launcher means nothing: a job says itself who starts its ranks (JobSpec.launcher)."""
    slots = cluster.gpus_per_worker or 1
    workers = Queue(
        name="workers",
        nodes=cluster.workers,
        node_prefix="worker",
        slots=slots,
        cores_per_slot=max(1, cluster.cores_per_worker // slots),
        gpus=cluster.gpus_per_worker,
        gpu_architecture=cluster.gpu_architecture,
        gpu_memory_gb=cluster.gpu_memory_gb,
        nvlink_gb_per_s=cluster.nvlink_gb_per_s,
        efa_cards=cluster.efa_per_worker,
        efa_gbps=cluster.efa_gbps,
        memory_gb=cluster.memory_gb,
        hourly_usd=round(cluster.hourly_usd / cluster.workers, 6),
    )
    return SshCluster(
        name=cluster.name,
        nodes=(Node(name=HEAD, private_ip=NOWHERE, role="head"),),
        shared_dir=cluster.shared_dir.rstrip("/"),
        data_url=cluster.data_url,
        queue=workers,
    )
