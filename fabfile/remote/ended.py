"""Nodes that are machines of this very host: whether one has ended is known here at once, where SSH only times out."""

from __future__ import annotations

from pathlib import Path

from infra.inventory import Node

WHY = "its machine has ended: it was powered off, has crashed or was killed"
MEND = "fab up"
"""It looks at what is really there before it decides, and makes the node anew."""
_GROUPS = "/sys/fs/cgroup/"


def is_gone(node: Node) -> bool:
    """Whether the node's machine on this host has ended; False for one that runs, and for machines elsewhere.

    Also False for a group that is none of this host's: an inventory may be somebody else's.
    """
    group = Path(node.control_group)
    if not node.control_group.startswith(_GROUPS) or ".." in group.parts or not Path(_GROUPS).is_dir():
        return False
    try:
        return "populated 1" not in (group / "cgroup.events").read_text().splitlines()
    except FileNotFoundError:
        return True
