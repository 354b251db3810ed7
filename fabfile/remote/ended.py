"""Whether a node that runs on this host has ended. The host knows at once; SSH would only time out."""

from __future__ import annotations

from pathlib import Path

from infra.inventory import KubeCluster, Node

WHY = "its machine has ended: it was powered off, has crashed or was killed"
MEND = "fab up"  # it compares the state with the machines that exist, and makes the node again
_GROUPS = "/sys/fs/cgroup/"


def is_gone(node: Node) -> bool:
    """Whether the node's machine on this host has ended; False for one that runs, and for machines elsewhere. Also
    False for a group of another host: the inventory may be of somebody else's machines."""
    return _is_here(node.control_group) and _is_empty(Path(node.control_group))


def gone_machines(cluster: KubeCluster) -> list[str]:
    """The machines of a Kubernetes cluster on this host that have ended; as `is_gone` without any that are elsewhere.
    Its API does not say that for a while, and nothing at all if its own machine has ended."""
    if not _is_here(cluster.control_groups):
        return []
    names = [f"node{number}" for number in range(1, cluster.workers + 1)]  # as infra.clouds.naming makes them
    return [name for name in names if _is_empty(Path(cluster.control_groups) / name)]


def _is_here(group: str) -> bool:
    return group.startswith(_GROUPS) and ".." not in Path(group).parts and Path(_GROUPS).is_dir()


def _is_empty(group: Path) -> bool:
    """Whether no process is left in a control group."""
    try:
        return "populated 1" not in (group / "cgroup.events").read_text().splitlines()
    except FileNotFoundError:
        return True
