"""A cluster's inventory: facts of the machine type, the same for all nodes, and each node's own fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra import inventory
from infra.clouds import naming
from infra.machine import MachineType


def facts(machine: MachineType) -> dict[str, Any]:
    """What the inventory says of every machine of a type."""
    return {
        **{"slots": machine.slots, "cores_per_slot": machine.cores_per_slot, "memory_gb": float(machine.memory_gb)},
        **{"gpus": machine.gpus, "gpu_architecture": machine.gpu_architecture},
        "gpu_memory_gb": float(machine.gpu_memory_gb),
        **{"nvlink_gb_per_s": float(machine.nvlink_gb_per_s), "efa_cards": machine.efa_cards},
        "efa_gbps": float(machine.efa_gbps),
    }


def of(machine: MachineType, each: Iterable[Mapping[str, Any]]) -> tuple[inventory.Node, ...]:
    """One inventory.Node for each mapping of a node's own fields (private_ip, host_key, ...), the head first."""
    same = facts(machine)
    return tuple(
        inventory.Node(**{"name": naming.node(index), "role": naming.role(index), **same, **own})
        for index, own in enumerate(each)
    )
