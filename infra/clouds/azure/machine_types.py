"""What is known of Azure's machine sizes, and what follows from it for disks.

Sources: Microsoft's pages of the Dv5, Dsv6 and Dsv7 series (MicrosoftDocs/azure-compute-docs, 2026) and of
"VM vCore Customization" there. Sizes of up to 32 vCPUs only: each is one NUMA node, so a rank has the whole machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.machine import Machine

DEFAULT = "Standard_D32s_v6"
BUILDER_DISK_GB = 64
"""Disk of the machine that an image is baked on: a bake fills about 16 GB. A node's disk cannot be smaller."""
MOST_DISK_GB = 4095
"""The largest disk that Azure boots from, in GiB."""
_TIERS = {32: 4, 64: 6, 128: 10, 256: 15, 512: 20, 1024: 30, 2048: 40, 4096: 50}
"""Azure bills a managed disk as the next larger of these sizes, in GiB; the number is the tier's: P15, E15."""


@dataclass(frozen=True, kw_only=True)
class Size(Machine):
    """One size of machine, and what Azure does with it. Its vCPUs are hyperthreads, two to a core."""

    processor: str
    nvme: bool
    """Whether its disks are NVMe, and nothing else; SCSI otherwise."""
    premium: bool
    """Whether it takes Premium SSDs."""
    one_thread: bool
    """Whether hyperthreading can be switched off, by vCPUsPerCore."""
    builder: str
    """A small size of the same series, that images for this one are baked on."""

    @property
    def storage(self) -> str:
        """The kind of a node's disk: the fastest that the size takes."""
        return "Premium_LRS" if self.premium else "StandardSSD_LRS"


def _series(name: str, *vcpus: int, processor: str, modern: bool) -> list[Size]:
    """The sizes of a series, `name` with {} for the vCPUs. A modern one has AMX on every machine, NVMe, Premium SSDs.

    "Most VM families" can switch hyperthreading off, says the documentation; it does not name the v5 series.
    """
    return [
        Size(
            name=name.format(count),
            cores=count // 2,
            memory_gb=count * 4,
            processor=processor,
            amx=modern,
            nvme=modern,
            premium=modern,
            one_thread=modern,
            builder=name.format(4),
        )
        for count in vcpus
    ]


_ANY = "Ice Lake, Sapphire Rapids or Emerald Rapids, as it comes"
SIZES = {
    size.name: size
    for size in (
        *_series("Standard_D{}s_v6", 8, 16, 32, processor="Emerald Rapids", modern=True),
        *_series("Standard_D{}s_v7", 32, processor="Granite Rapids", modern=True),
        *_series("Standard_D{}_v5", 16, 32, processor=_ANY, modern=False),
    )
}


def of(settings: Settings) -> Size:
    """The nodes' size. Raises SettingsError for one that is not known here, naming those that are."""
    name = settings.cloud.instance_type or DEFAULT
    if name not in SIZES:
        raise SettingsError("instanceType", name, f"one of {', '.join(SIZES)}, or empty for {DEFAULT}")
    return SIZES[name]


def tier(storage: str, gb: int) -> str:
    """What a managed disk of `gb` GiB is billed as: P15, E6."""
    letter = {"Premium_LRS": "P", "StandardSSD_LRS": "E"}[storage]
    return f"{letter}{next(number for most, number in _TIERS.items() if gb <= most)}"


def amx_warning(size: Size) -> str:
    """What a size without certain AMX means for training; empty for one with it."""
    if size.amx:
        return ""
    return (
        f"{size.name} comes as {size.processor}: whether a node has AMX is a lottery, and nodes of one cluster may "
        "differ. Without AMX bf16 is slower than fp32. `fab check` shows what each node has; precision `auto` "
        f"measures it. {DEFAULT} always has AMX."
    )
