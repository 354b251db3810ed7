"""Facts about Azure's machine sizes, and about disks for them.

Sources: Microsoft's pages of the Dv5, Dsv6 and Dsv7 series (MicrosoftDocs/azure-compute-docs, 2026) and of
"VM vCore Customization" there. Sizes of up to 32 vCPUs only: each is one NUMA node, so a rank has the whole machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.machine import MachineType

DEFAULT = "Standard_D32s_v6"
BUILDER_DISK_GB = 64
"""Disk of the builder, in GiB: a bake fills about 16 GB. A node's disk cannot be smaller."""
MOST_DISK_GB = 4095
"""The largest disk that Azure boots from, in GiB."""
_TIERS = {32: 4, 64: 6, 128: 10, 256: 15, 512: 20, 1024: 30, 2048: 40, 4096: 50}
"""Azure bills a managed disk as the next larger of these sizes in GiB -> the number in the tier's name (P15, E15)."""


@dataclass(frozen=True, kw_only=True)
class Size(MachineType):
    """A machine size. Its vCPUs are hyperthreads, two to a core."""

    processor: str
    modern: bool
    """AMX on every machine, NVMe disks only (others: SCSI), Premium SSDs, and hyperthreading that can be switched off
    (vCPUsPerCore): the documentation says that this works on "most VM families", without naming the v5 series."""
    builder: str
    """A small size of the same series, on which images for this one are baked."""

    @property
    def storage(self) -> str:
        """The disk type of a node: the fastest that the size supports."""
        return "Premium_LRS" if self.modern else "StandardSSD_LRS"


def _series(name: str, *vcpus: int, processor: str, modern: bool) -> list[Size]:
    """The sizes of a series; `name` has {} for the vCPUs."""
    four = name.format(4)
    small = Size(name=four, cores=2, memory_gb=16, processor=processor, amx=modern, modern=modern, builder=four)
    return [replace(small, name=name.format(n), cores=n // 2, memory_gb=n * 4) for n in vcpus]


_SERIES = (
    *_series("Standard_D{}s_v6", 8, 16, 32, processor="Emerald Rapids", modern=True),
    *_series("Standard_D{}s_v7", 32, processor="Granite Rapids", modern=True),
    *_series("Standard_D{}_v5", 16, 32, processor="Ice Lake, Sapphire Rapids or Emerald Rapids", modern=False),
)
SIZES = {size.name: size for size in _SERIES}


def of(settings: Settings) -> Size:
    """The nodes' size. Raises SettingsError for an unknown one, and lists the known ones."""
    name = settings.cloud.instance_type or DEFAULT
    if name not in SIZES:
        raise SettingsError("instanceType", name, f"one of {', '.join(SIZES)}, or empty for {DEFAULT}")
    return SIZES[name]


def tier(storage: str, gb: int) -> str:
    """The billing tier of a managed disk of `gb` GiB, such as P15 or E6."""
    letter = {"Premium_LRS": "P", "StandardSSD_LRS": "E"}[storage]
    return f"{letter}{next(number for most, number in _TIERS.items() if gb <= most)}"


def amx_warning(size: Size) -> str:
    """A warning about training speed on a size that may lack AMX; empty for one that has it."""
    if size.amx:
        return ""
    return (
        f"{size.name} comes as {size.processor}: whether a node has AMX is a lottery, and nodes of one cluster may "
        "differ. Without AMX bf16 is slower than fp32. `fab check` shows what each node has; precision `auto` "
        f"measures it. {DEFAULT} always has AMX."
    )
