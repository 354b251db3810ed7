"""The instance types that nodes can have, and facts about them that need no request to AWS.

Cores, memory and placement: EC2's DescribeInstanceTypes, as recorded by moto 5.2 (a test compares). Sockets: the
number of cores that one processor of the family gives a guest (Ice Lake 8375C 32, Sapphire Rapids 8488C 48 and 6455B
32, Granite Rapids 6975P-C 96), as EC2 does not report it; on the node, `fab check` shows the actual NUMA nodes.
Bare-metal types are left out: EC2 cannot switch off their hyper-threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.machine import MachineType

DEFAULT = "m7i.8xlarge"


@dataclass(frozen=True, kw_only=True)
class InstanceType(MachineType):
    """Facts about an instance type."""

    cluster: bool
    """Whether a cluster placement group accepts it."""


def _cores(size: str) -> int:
    """1 for large, 2 for xlarge, 32 for 16xlarge."""
    return 1 if size == "large" else 2 * int(size.removesuffix("xlarge") or 1)


def _family(
    name: str, sizes: str, *, gb_per_core: int, cores_per_socket: int, amx: bool, cluster: bool = True
) -> dict[str, InstanceType]:
    found = [
        InstanceType(
            name=f"{name}.{size}",
            cores=(cores := _cores(size)),
            memory_gb=cores * gb_per_core,
            numa_nodes=math.ceil(cores / cores_per_socket),
            amx=amx,
            cluster=cluster,
        )
        for size in sizes.split()
    ]
    return {entry.name: entry for entry in found}


_SMALL = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge"
TYPES: dict[str, InstanceType] = {
    # 3rd generation Xeon (Ice Lake): AVX-512, neither AMX nor AVX512_BF16.
    **_family("m6i", f"{_SMALL} 24xlarge 32xlarge", gb_per_core=8, cores_per_socket=32, amx=False),
    # 4th generation (Sapphire Rapids).
    **_family("m7i", f"{_SMALL} 24xlarge 48xlarge", gb_per_core=8, cores_per_socket=48, amx=True),
    **_family("r7iz", f"{_SMALL} 32xlarge", gb_per_core=16, cores_per_socket=32, amx=True),
    # 6th generation (Granite Rapids).
    **_family("m8i", f"{_SMALL} 24xlarge 32xlarge 48xlarge 96xlarge", gb_per_core=8, cores_per_socket=96, amx=True),
    # Not accepted, as their cores are shared; listed so that the error message can say why.
    **_family("m7i-flex", _SMALL, gb_per_core=8, cores_per_socket=48, amx=True, cluster=False),
    **_family("m8i-flex", _SMALL, gb_per_core=8, cores_per_socket=96, amx=True, cluster=False),
}


def name_of(settings: Settings) -> str:
    """The name of the nodes' type, whether or not there is such a type."""
    return settings.cloud.instance_type or DEFAULT


def of(settings: Settings) -> InstanceType:
    """The nodes' type. Raises SettingsError for an unknown one, or one that a cluster placement group refuses."""
    name = name_of(settings)
    known, family = TYPES.get(name), name.partition(".")[0]
    if known is None:
        usable = [entry.name for entry in TYPES.values() if entry.cluster]
        sizes = [entry for entry in usable if entry.partition(".")[0] == family]
        families = ", ".join(sorted({entry.partition(".")[0] for entry in usable}))
        allowed = f"one of {', '.join(sizes)}" if sizes else f"a size of {families}, such as {DEFAULT}"
        raise SettingsError("instanceType", name, allowed)
    if not known.cluster:
        one = name.replace("-flex", "")
        raise SettingsError("instanceType", name, f"a type that a cluster placement group takes; {one} is one")
    return known


def without_amx(known: InstanceType) -> str:
    """A warning about a type without AMX; empty for one that has it."""
    if known.amx:
        return ""
    return (
        f"{known.name} has neither AMX nor AVX512_BF16: bf16 is computed in software there and is slower than fp32, "
        f"so a job's precision auto, which measures both, ends at fp32; m7i, m8i and r7iz have both"
    )
