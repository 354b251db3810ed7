"""Choose the backend that runs the jobs of a cluster, by the inventory's kind."""

from __future__ import annotations

from invoke.exceptions import Exit

from fabfile import targets
from fabfile.backends.base import Backend
from fabfile.backends.slurm.backend import SlurmBackend
from fabfile.backends.ssh.backend import SshBackend
from fabfile.launchers import SLURM
from infra.inventory import Cluster, SshCluster


def connect(stack: str, inventory: str) -> Backend:
    """The backend of an inventory file if one is named, else of a stack; Exit 2 if there is none. Does not connect."""
    return of(targets.load(stack, inventory))


def of(cluster: Cluster, timeout: float = 10) -> Backend:
    """The backend for a cluster; `timeout` limits a connection attempt, in seconds."""
    if isinstance(cluster, SshCluster) and cluster.launcher == SLURM:
        return SlurmBackend(cluster, timeout)
    if isinstance(cluster, SshCluster):
        return SshBackend(cluster, timeout)
    raise Exit(f"{cluster.name}: kind = {cluster.kind!r}: jobs on Kubernetes are not there yet", code=2)
