"""A machine type, the same for every cloud: slots, prices, quotas and rank plans are computed from it.

Each cloud has a table of types (infra.clouds.<cloud>.machine_types); add a row for a new type. The local cluster makes
one from its settings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """A type of machine."""

    name: str
    """Its name in the cloud and in the table of prices."""
    cores: int
    """Physical cores."""
    memory_gb: float
    """GiB."""
    numa_nodes: int = 1
    amx: bool = False
    """Whether every machine of the type has bf16 matrix instructions (AMX)."""
    gpus: int = 0
    gpu_architecture: str = ""
    """GPU architecture for the choice of a torch build, such as sm_70; empty without GPUs."""
    gpu_memory_gb: float = 0.0
    """GiB of each GPU; 0: there is none, or that is unknown."""
    efa_cards: int = 0
    """Number of Elastic Fabric Adapters, AWS's network cards for collectives."""
    efa_gbps: float = 0.0
    """Gbit/s of all of them together, in each direction."""
    nvlink_gb_per_s: float = 0.0
    """GB/s that each GPU sends over its NVLinks, by NVIDIA's data sheet (half of the figure for both directions); 0:
    the GPUs talk over PCIe."""

    def __post_init__(self) -> None:
        if self.gpus and not self.gpu_architecture:
            raise ValueError(f"{self.name}: {self.gpus} GPUs need their architecture")
        if self.cores < self.slots:
            raise ValueError(f"{self.name}: {self.slots} slots need a core each, and it has {self.cores}")

    @property
    def slots(self) -> int:
        """Ranks on the machine: one per GPU, or without GPUs one per NUMA node."""
        return self.gpus or self.numa_nodes

    @property
    def cores_per_slot(self) -> int:
        """Physical cores per rank."""
        return self.cores // self.slots
