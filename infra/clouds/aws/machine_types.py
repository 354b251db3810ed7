"""The instance types that nodes can have, and facts about them that need no request to AWS.

Cores, memory and placement: EC2's DescribeInstanceTypes, as recorded by moto 5.2 (a test compares). Sockets: the
number of cores that one processor of the family gives a guest (Ice Lake 8375C 32, Sapphire Rapids 8488C 48 and 6455B
32, Granite Rapids 6975P-C 96), as EC2 does not report it; on the node, `fab check` shows the actual NUMA nodes.
Bare-metal types are left out: EC2 cannot switch off their hyper-threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.machine import Machine

DEFAULT = "m7i.8xlarge"
_CORES = {
    **{"large": 1, "xlarge": 2, "2xlarge": 4, "4xlarge": 8, "8xlarge": 16, "12xlarge": 24, "16xlarge": 32},
    **{"24xlarge": 48, "32xlarge": 64, "48xlarge": 96, "96xlarge": 192},
}


@dataclass(frozen=True, kw_only=True)
class InstanceType(Machine):
    """Facts about an instance type."""

    cluster: bool
    """Whether a cluster placement group accepts it."""


def _family(
    name: str, sizes: str, *, gb_per_core: int, cores_per_socket: int, amx: bool, cluster: bool = True
) -> dict[str, InstanceType]:
    found = {}
    for size in sizes.split():
        cores = _CORES[size]
        sockets = max(1, -(-cores // cores_per_socket))
        found[f"{name}.{size}"] = InstanceType(
            name=f"{name}.{size}",
            cores=cores,
            memory_gb=cores * gb_per_core,
            numa_nodes=sockets,
            amx=amx,
            cluster=cluster,
        )
    return found


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


def of(settings: Settings) -> InstanceType:
    """The nodes' type. Raises SettingsError for an unknown one, or one that a cluster placement group refuses."""
    name = settings.cloud.instance_type or DEFAULT
    known = TYPES.get(name)
    usable = [entry.name for entry in TYPES.values() if entry.cluster]
    if known is None:
        families = sorted({entry.partition(".")[0] for entry in usable})
        sizes = [entry for entry in usable if entry.partition(".")[0] == name.partition(".")[0]]
        raise SettingsError("instanceType", name, f"one of {', '.join(sizes)}" if sizes else _families(families))
    if not known.cluster:
        raise SettingsError(
            "instanceType", name, f"a type that a cluster placement group takes; {name.replace('-flex', '')} is one"
        )
    return known


def _families(families: list[str]) -> str:
    return f"a size of {', '.join(families)}, such as {DEFAULT}"


def without_amx(known: InstanceType) -> str:
    """A warning about a type without AMX; empty for one that has it."""
    if known.amx:
        return ""
    return (
        f"{known.name} has neither AMX nor AVX512_BF16: bf16 is computed in software there and is slower than fp32, "
        f"so a job's precision auto, which measures both, ends at fp32; m7i, m8i and r7iz have both"
    )
