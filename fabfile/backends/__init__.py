"""Choose the backend that runs the jobs of a cluster, by the inventory's kind."""

from __future__ import annotations

from fabfile import targets
from fabfile.backends.base import Backend
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.slurm.backend import SlurmBackend
from fabfile.backends.ssh.backend import SshBackend
from fabfile.launchers import SLURM
from fabfile.remote.fleet import Connections, Fleet
from infra.inventory import Cluster, SshCluster


def connect(stack: str, inventory: str) -> Backend:
    """The backend of an inventory file if one is named, else of a stack; Exit 2 if there is none. Does not connect."""
    return of(targets.load_any(stack, inventory))


def nodes_of(cluster: Cluster) -> Connections:
    """Connections to a cluster's nodes, for a verb that runs commands on them; on Kubernetes to its one head pod, which
    is the only node of the cluster that these have."""
    if isinstance(cluster, SshCluster):
        return Fleet(cluster)
    return KubernetesBackend(cluster).connections


def of(cluster: Cluster, timeout: float = 10) -> Backend:
    """The backend for a cluster; `timeout` limits a connection attempt, in seconds."""
    if isinstance(cluster, SshCluster) and cluster.launcher == SLURM:
        return SlurmBackend(cluster, timeout)
    if isinstance(cluster, SshCluster):
        return SshBackend(cluster, timeout)
    return KubernetesBackend(cluster, timeout)
