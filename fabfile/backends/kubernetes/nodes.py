"""What Kubernetes says of its machines: whether they take pods, and what they have for them. Pure functions."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

OUT_OF_DISK = "out of disk"
_FULL = "node.kubernetes.io/disk-pressure"
"""The taint by which Kubernetes keeps pods from a machine with the condition DiskPressure."""


def state(node: Object) -> str:
    """A machine's state: ready, not ready, cordoned, which is ready but takes no new pods, as `kubectl cordon` and
    `kubectl drain` have it, or out of disk, when its kubelet ends pods to make room."""
    spec, conditions = node.get("spec") or {}, (node.get("status") or {}).get("conditions") or ()
    true = {one.get("type") for one in conditions if one.get("status") == "True"}
    if "Ready" not in true:
        return "not ready"
    if spec.get("unschedulable"):
        return "cordoned"
    is_full = "DiskPressure" in true or any(one.get("key") == _FULL for one in spec.get("taints") or ())
    return OUT_OF_DISK if is_full else "ready"


def is_ready(node: Object) -> bool:
    """Whether a machine is ready, and takes pods."""
    return state(node) == "ready"


def has(node: Object, resource: str) -> int:
    """How many of a resource a machine has for pods."""
    text = str(((node.get("status") or {}).get("allocatable") or {}).get(resource) or "0")
    return int(text) if text.isdecimal() else 0
