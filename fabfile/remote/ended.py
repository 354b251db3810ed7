"""Whether a node that runs on this host has ended. The host knows at once; SSH would only time out."""

from __future__ import annotations

from pathlib import Path

from infra.inventory import Node

WHY = "its machine has ended: it was powered off, has crashed or was killed"
MEND = "fab up"  # it compares the state with the machines that exist, and makes the node again
_GROUPS = "/sys/fs/cgroup/"


def is_gone(node: Node) -> bool:
    """Whether the node's machine on this host has ended; False for one that runs, and for machines elsewhere. Also
    False for a group of another host: the inventory may be of somebody else's machines."""
    group = Path(node.control_group)
    if not node.control_group.startswith(_GROUPS) or ".." in group.parts or not Path(_GROUPS).is_dir():
        return False
    try:
        return "populated 1" not in (group / "cgroup.events").read_text().splitlines()
    except FileNotFoundError:
        return True
