"""The instance types that nodes can have, and facts about them that need no request to AWS.

Cores, memory and placement: EC2's DescribeInstanceTypes, as recorded by moto 5.2 (a test compares). Sockets: the
number of cores that one processor of the family gives a guest (Ice Lake 8375C 32, Sapphire Rapids 8488C 48 and 6455B
32, Granite Rapids 6975P-C 96; under GPUs Xeon 8175M and 8275CL 24, EPYC 7R32 and 7R13 and Xeon 8488C 48), as EC2 does
not report it; on the node, `fab check` shows the actual NUMA nodes. Bare-metal types are left out: EC2 cannot switch
off their hyper-threads. GPUs, their memory, EFA and its Gbit/s: the same record. NVLink: NVIDIA's data sheets of V100,
A100, H100 and H200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.machine import MachineType


@dataclass(frozen=True, kw_only=True)
class InstanceType(MachineType):
    """Facts about an instance type."""

    cluster: bool
    """Whether a cluster placement group accepts it."""
    cpu_options: bool = True
    """Whether EC2 can switch off its hyper-threads."""


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


@dataclass(frozen=True, kw_only=True)
class _Gpu:
    """A model of GPU, as a family of instances has it."""

    architecture: str
    memory_gb: float
    """GiB of each."""
    nvlink_gb_per_s: float = 0.0
    efa_gbps: dict[str, float] = field(default_factory=dict)
    """Gbit/s of all EFA cards of a size, for those that have any."""
    card_gbps: float = 0.0
    """Gbit/s of one card; 0: there is one card, whatever its speed."""
    cores_per_socket: int = 48
    cpu_options: bool = True


def _gpu_family(
    name: str, gpu: _Gpu, sizes: dict[str, int], *, cores: int = 0, gb: float = 0
) -> dict[str, InstanceType]:
    """`sizes`: GPUs by size. `cores` and `gb`: if they do not follow from the size as in the G families, 8 GiB a
    core."""
    found = {}
    for size, count in sizes.items():
        own, gbps = cores or _cores(size), gpu.efa_gbps.get(size, 0.0)
        found[f"{name}.{size}"] = InstanceType(
            name=f"{name}.{size}",
            cores=own,
            memory_gb=gb or own * 8,
            numa_nodes=math.ceil(own / gpu.cores_per_socket),
            gpus=count,
            gpu_architecture=gpu.architecture,
            gpu_memory_gb=gpu.memory_gb,
            nvlink_gb_per_s=gpu.nvlink_gb_per_s,
            efa_cards=round(gbps / gpu.card_gbps) if gpu.card_gbps else int(gbps > 0),
            efa_gbps=gbps,
            cluster=True,
            cpu_options=gpu.cpu_options,
        )
    return found


_G_SIZES = {
    **dict.fromkeys(("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge"), 1),
    **{"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
}
_G_EFA = {"8xlarge": 25.0, "16xlarge": 25.0, "12xlarge": 40.0, "24xlarge": 50.0, "48xlarge": 100.0}
_V100 = _Gpu(
    architecture="sm_70",
    memory_gb=32,
    nvlink_gb_per_s=150,
    efa_gbps={"24xlarge": 100},
    card_gbps=100,
    cores_per_socket=24,
)
_A100 = _Gpu(
    architecture="sm_80",
    memory_gb=40,
    nvlink_gb_per_s=300,
    efa_gbps={"24xlarge": 400},
    card_gbps=100,
    cores_per_socket=24,
)
_H100 = _Gpu(architecture="sm_90", memory_gb=80, nvlink_gb_per_s=450, efa_gbps={"48xlarge": 3200}, card_gbps=100)
_H200 = _Gpu(architecture="sm_90", memory_gb=141, nvlink_gb_per_s=450, efa_gbps={"48xlarge": 3200}, card_gbps=200)
GPU_TYPES: dict[str, InstanceType] = {
    **_gpu_family("p3dn", _V100, {"24xlarge": 8}, cores=48, gb=768),
    **_gpu_family("p4d", _A100, {"24xlarge": 8}, cores=48, gb=1152),
    **_gpu_family("p4de", replace(_A100, memory_gb=80), {"24xlarge": 8}, cores=48, gb=1152),
    **_gpu_family("p5", _H100, {"48xlarge": 8}, cores=96, gb=2048),
    **_gpu_family("p5en", _H200, {"48xlarge": 8}, cores=96, gb=2048),
    # A10G and L4, over PCIe. EC2 lists no CPU options for g5.
    **_gpu_family(
        "g5", _Gpu(architecture="sm_86", memory_gb=22888 / 1024, efa_gbps=_G_EFA, cpu_options=False), _G_SIZES
    ),
    **_gpu_family("g6", _Gpu(architecture="sm_89", memory_gb=22888 / 1024, efa_gbps=_G_EFA), _G_SIZES),
}


RDMA = ("sm_80", "sm_90")
"""Architectures of the P families whose memory EFA reads and writes without the processor."""


@dataclass(frozen=True)
class Choice:
    """The types that the nodes of a kind of cluster can have."""

    default: str
    types: dict[str, InstanceType]


CHOICES = {
    "aws-xeon": Choice("m7i.8xlarge", TYPES),
    "aws-gpu": Choice("p3dn.24xlarge", GPU_TYPES),
    "aws-slurm": Choice("p3dn.24xlarge", GPU_TYPES),
    # FSDP's jobs are in bf16, which V100 lacks, and EKS's next image may have no driver for it.
    "aws-eks": Choice("p4d.24xlarge", {n: t for n, t in GPU_TYPES.items() if t.gpu_architecture != "sm_70"}),
}


def choice(settings: Settings) -> Choice:
    """The types of the stack's kind of cluster."""
    return CHOICES[settings.cluster]


def name_of(settings: Settings) -> str:
    """The name of the nodes' type, whether or not there is such a type."""
    return settings.cloud.instance_type or choice(settings).default


def of(settings: Settings) -> InstanceType:
    """The nodes' type. Raises SettingsError for an unknown one, one of another kind of cluster, or one that a cluster
    placement group refuses."""
    name, own = name_of(settings), choice(settings)
    known, family = own.types.get(name), name.partition(".")[0]
    if known is None:
        usable = [entry.name for entry in own.types.values() if entry.cluster]
        sizes = [entry for entry in usable if entry.partition(".")[0] == family]
        families = ", ".join(sorted({entry.partition(".")[0] for entry in usable}))
        allowed = f"one of {', '.join(sizes)}" if sizes else f"a size of {families}, such as {own.default}"
        others = [cluster for cluster, other in CHOICES.items() if name in other.types]
        raise SettingsError("instanceType", name, f"{allowed}; it is one of cluster {others[0]}" if others else allowed)
    if not known.cluster:
        one = name.replace("-flex", "")
        raise SettingsError("instanceType", name, f"a type that a cluster placement group takes; {one} is one")
    return known


def for_nodes(known: InstanceType) -> dict[str, object]:
    """What the bootstrap of a node of this type has to know of it; empty without GPUs."""
    if not known.gpus:
        return {}
    # EFA reads a GPU's memory itself from p4d on, not on p3dn: aws/aws-ofi-nccl#104.
    rdma = known.efa_cards > 0 and known.gpu_architecture in RDMA
    return {
        **{"GPUS": known.gpus, "GPU_ARCHITECTURE": known.gpu_architecture},
        **{"NVLINK": str(known.nvlink_gb_per_s > 0).lower(), "EFA_CARDS": known.efa_cards},
        "GPU_RDMA": str(rdma).lower(),
    }


def without_amx(known: InstanceType) -> str:
    """A warning about a type without AMX; empty for one that has it, or has GPUs, which compute instead."""
    if known.amx or known.gpus:
        return ""
    return (
        f"{known.name} has neither AMX nor AVX512_BF16: bf16 is computed in software there and is slower than fp32, "
        f"so a job's precision auto, which measures both, ends at fp32; m7i, m8i and r7iz have both"
    )
