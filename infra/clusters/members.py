"""A cluster's inventory: facts of the machine type, the same for all nodes, and each node's own fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra import inventory
from infra.clouds import naming
from infra.machine import MachineType


def of(machine: MachineType, each: Iterable[Mapping[str, Any]]) -> tuple[inventory.Node, ...]:
    """One inventory.Node for each mapping of a node's own fields (private_ip, host_key, ...), the head first."""
    facts = {
        **{"slots": machine.slots, "cores_per_slot": machine.cores_per_slot},
        **{"gpus": machine.gpus, "gpu_architecture": machine.gpu_architecture},
        **{"nvlink_gb_per_s": float(machine.nvlink_gb_per_s), "efa_cards": machine.efa_cards},
        "efa_gbps": float(machine.efa_gbps),
    }
    memory = float(machine.memory_gb)
    return tuple(
        inventory.Node(**{"name": naming.node(index), "role": naming.role(index), "memory_gb": memory, **facts, **own})
        for index, own in enumerate(each)
    )
