"""Who runs a job: one backend for each way, chosen by what the inventory says."""

from __future__ import annotations

from invoke.exceptions import Exit

from fabfile import targets
from fabfile.backends.base import Backend
from fabfile.backends.ssh.backend import SshBackend
from infra.inventory import Cluster, SshCluster


def connect(stack: str, inventory: str) -> Backend:
    """The backend of an inventory file, else of a stack; Exit 2 where there is none. Opens no connection yet."""
    return of(targets.load(stack, inventory))


def of(cluster: Cluster, timeout: float = 10) -> Backend:
    """The backend for a cluster; `timeout` is how many seconds a connection may take."""
    if isinstance(cluster, SshCluster):
        return SshBackend(cluster, timeout)
    raise Exit(f"{cluster.name}: kind = {cluster.kind!r}: jobs are run on nodes reached over SSH", code=2)
