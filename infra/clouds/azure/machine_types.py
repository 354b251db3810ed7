"""What is known of Azure's machine sizes, and what follows from it for disks.

Sources: Microsoft's pages of the Dv5, Dsv6 and Dsv7 series (MicrosoftDocs/azure-compute-docs, 2026) and of
"VM vCore Customization" there. Sizes of up to 32 vCPUs only: each is one NUMA node, so a rank has the whole machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.config.settings import Settings
from infra.config.values import SettingsError

DEFAULT = "Standard_D32s_v6"
BUILDER_DISK_GB = 64
"""Disk of the machine that an image is baked on: a bake fills about 16 GB. A node's disk cannot be smaller."""
MOST_DISK_GB = 4095
"""The largest disk that Azure boots from, in GiB."""
_TIERS = {32: 4, 64: 6, 128: 10, 256: 15, 512: 20, 1024: 30, 2048: 40, 4096: 50}
"""Azure bills a managed disk as the next larger of these sizes, in GiB; the number is the tier's: P15, E15."""


@dataclass(frozen=True)
class Size:
    """One size of machine."""

    name: str
    vcpus: int
    """Hyperthreads, two to a core."""
    memory_gb: int
    """In GiB."""
    processor: str
    amx: bool
    """Whether every machine of this size has AMX."""
    nvme: bool
    """Whether its disks are NVMe, and nothing else; SCSI otherwise."""
    premium: bool
    """Whether it takes Premium SSDs."""
    one_thread: bool
    """Whether hyperthreading can be switched off, by vCPUsPerCore."""
    builder: str
    """A small size of the same series, that images for this one are baked on."""

    @property
    def cores(self) -> int:
        """Physical cores."""
        return self.vcpus // 2

    @property
    def storage(self) -> str:
        """The kind of a node's disk: the fastest that the size takes."""
        return "Premium_LRS" if self.premium else "StandardSSD_LRS"


def _v6(vcpus: int) -> Size:
    return Size(
        name=f"Standard_D{vcpus}s_v6",
        vcpus=vcpus,
        memory_gb=vcpus * 4,
        processor="Emerald Rapids",
        amx=True,
        nvme=True,
        premium=True,
        one_thread=True,
        builder="Standard_D4s_v6",
    )


def _v7(vcpus: int) -> Size:
    return Size(
        name=f"Standard_D{vcpus}s_v7",
        vcpus=vcpus,
        memory_gb=vcpus * 4,
        processor="Granite Rapids",
        amx=True,
        nvme=True,
        premium=True,
        one_thread=True,
        builder="Standard_D4s_v7",
    )


def _v5(vcpus: int) -> Size:
    return Size(
        name=f"Standard_D{vcpus}_v5",
        vcpus=vcpus,
        memory_gb=vcpus * 4,
        processor="Ice Lake, Sapphire Rapids or Emerald Rapids, as it comes",
        amx=False,
        nvme=False,
        premium=False,
        # "Most VM families" can, says the documentation; it does not name this one.
        one_thread=False,
        builder="Standard_D4_v5",
    )


SIZES = {size.name: size for size in (_v6(8), _v6(16), _v6(32), _v7(32), _v5(16), _v5(32))}


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
