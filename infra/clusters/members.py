"""The nodes of an inventory: what the machine type says, the same for all, and what each node has of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra import inventory
from infra.clouds import naming
from infra.machine import Machine


def of(machine: Machine, each: Iterable[Mapping[str, Any]]) -> tuple[inventory.Node, ...]:
    """One inventory.Node for each mapping of fields that only that node has (private_ip, host_key, ...), head first."""
    facts = {"slots": machine.slots, "cores_per_slot": machine.cores_per_slot, "gpus": machine.gpus}
    memory = float(machine.memory_gb)
    return tuple(
        inventory.Node(**{"name": naming.node(index), "role": naming.role(index), "memory_gb": memory, **facts, **own})
        for index, own in enumerate(each)
    )
