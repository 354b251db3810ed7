"""infra.machine: ranks and their cores follow from what a machine is; every cloud's table is made of such machines."""

from __future__ import annotations

import dataclasses

import pytest

from infra.clouds.local import host
from infra.clusters import members
from infra.config.settings import load
from infra.machine import MachineType

V100 = MachineType(
    name="p3dn.24xlarge", cores=48, memory_gb=768, numa_nodes=2, gpus=8, gpu_architecture="sm_70", efa_cards=1
)


@pytest.mark.parametrize(
    "machine, slots, cores",
    [
        (MachineType(name="one", cores=16, memory_gb=128), 1, 16),
        (MachineType(name="two", cores=96, memory_gb=768, numa_nodes=2), 2, 48),
        (V100, 8, 6),
    ],
    ids=lambda value: value.name if isinstance(value, MachineType) else "",
)
def test_a_rank_for_each_gpu_else_for_each_numa_node(machine: MachineType, slots: int, cores: int) -> None:
    assert (machine.slots, machine.cores_per_slot) == (slots, cores)
    (node,) = members.of(machine, [{"private_ip": "10.0.0.1"}])
    assert (node.slots, node.cores_per_slot, node.gpus) == (slots, cores, machine.gpus)
    assert (node.name, node.role, node.memory_gb) == ("node1", "head", machine.memory_gb)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="2 GPUs need their architecture"):
        MachineType(name="half", cores=8, memory_gb=64, gpus=2)
    with pytest.raises(ValueError, match="4 slots need a core each, and it has 2"):
        MachineType(name="small", cores=2, memory_gb=8, numa_nodes=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        V100.cores = 1  # type: ignore[misc]


def test_a_local_node_is_what_its_settings_say(good: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    asked = host.machine(load("local", {**good, "cpus": "3", "memoryMb": "1536"}))
    assert (asked.slots, asked.cores_per_slot, asked.memory_gb) == (1, 3, 1.5)
    assert host.machine(load("local", {**good, "cpus": "64"})).cores == 4


def test_every_table_of_a_cloud_is_of_machines() -> None:
    aws = pytest.importorskip("infra.clouds.aws.machine_types")
    azure = pytest.importorskip("infra.clouds.azure.machine_types")
    found = [*aws.TYPES.items(), *azure.SIZES.items()]
    assert len(found) > 30
    assert all(isinstance(entry, MachineType) and entry.name == name for name, entry in found)
    assert azure.SIZES["Standard_D32s_v6"].cores_per_slot == 16
    assert aws.TYPES["m7i.48xlarge"].slots == 2
