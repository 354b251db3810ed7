"""What a machine is, in every cloud: the one description that slots, prices, quotas and plans of ranks read.

Each cloud has a table of them (infra.clouds.<cloud>.machine_types), where a new type is a row; the local cluster makes
one from its settings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A type of machine."""

    name: str
    """As its cloud calls it, and the table of prices."""
    cores: int
    """Physical cores."""
    memory_gb: float
    """GiB."""
    numa_nodes: int = 1
    amx: bool = False
    """Whether every machine of the type multiplies bf16 matrices in hardware."""
    gpus: int = 0
    gpu_architecture: str = ""
    """What the GPUs need of a torch build, such as sm_70; empty without GPUs."""
    efa_cards: int = 0
    """Elastic Fabric Adapters: AWS's network cards for collectives."""

    def __post_init__(self) -> None:
        if self.gpus and not self.gpu_architecture:
            raise ValueError(f"{self.name}: {self.gpus} GPUs need their architecture")
        if self.cores < self.slots:
            raise ValueError(f"{self.name}: {self.slots} slots need a core each, and it has {self.cores}")

    @property
    def slots(self) -> int:
        """Ranks that the machine takes: one for each GPU, without GPUs one for each NUMA node."""
        return self.gpus or self.numa_nodes

    @property
    def cores_per_slot(self) -> int:
        """Physical cores of one rank."""
        return self.cores // self.slots
