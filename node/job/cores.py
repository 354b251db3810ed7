"""Which cores a rank is pinned to: one thread per physical core, a NUMA node of its own if possible. Runs on a node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Container
from pathlib import Path

Core = tuple[int, int, int]
"""(processor, physical core, NUMA node)"""


def is_shared() -> bool:
    """Whether this node is a container that shares its processor with others. Ranks are then not pinned: all containers
    would choose the same cores."""
    return Path("/run/systemd/container").exists()


def topology() -> list[Core]:
    """The first thread of each physical core that this process may use."""
    argv = ["lscpu", "-p=CPU,CORE,NODE"]
    text = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True).stdout
    return parse(text, os.sched_getaffinity(0))


def parse(text: str, allowed: Container[int] | None = None) -> list[Core]:
    """The first thread of each physical core, from what `lscpu -p=CPU,CORE,NODE` prints; only of the `allowed` ones, if
    these are given, as the control group of a container may have fewer."""
    first: dict[int, Core] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            cpu, core, node = (int(word or 0) for word in line.split(",")[:3])
            if allowed is None or cpu in allowed:
                first.setdefault(core, (cpu, core, node))
    return sorted(first.values(), key=lambda core: (core[2], core[0]))


def share(cores: list[Core], slots: int, local_rank: int, shared: bool) -> list[int]:
    """The processors to pin one of a node's ranks to; empty: do not pin it. The cores are in the order of their NUMA
    nodes and cut evenly, so that with one rank per NUMA node each rank has one to itself. Its memory is then local too:
    Linux allocates a page on the NUMA node of the core that first writes to it."""
    if shared or len(cores) < slots:
        return []
    first, last = len(cores) * local_rank // slots, len(cores) * (local_rank + 1) // slots
    return sorted(cpu for cpu, _, _ in cores[first:last])


def shares(cores: list[Core], slots: int, gpus: list[int], shared: bool) -> list[list[int]]:
    """The processors of each of a node's ranks. `gpus`: the NUMA node of each GPU, in the order of the ranks that have
    them; a rank gets cores of its GPU's. Without GPUs, or where a NUMA node has too few cores for its GPUs, as
    `share`."""
    near = [[cpu for cpu, _, node in cores if node == own] for own in gpus]
    if shared or len(gpus) != slots or any(len(near[rank]) < gpus.count(gpus[rank]) for rank in range(slots)):
        return [share(cores, slots, rank, shared) for rank in range(slots)]
    each = []
    for rank, (own, found) in enumerate(zip(gpus, near, strict=True)):
        place, ranks = gpus[:rank].count(own), gpus.count(own)
        each.append(sorted(found[len(found) * place // ranks : len(found) * (place + 1) // ranks]))
    return each


def gpu_nodes(proc: Path = Path("/proc/driver/nvidia/gpus"), bus: Path = Path("/sys/bus/pci/devices")) -> list[int]:
    """The NUMA node of each GPU in the order of the PCI bus, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID; empty
    without NVIDIA's driver, or where the kernel does not know."""
    names = sorted(path.name for path in proc.iterdir()) if proc.is_dir() else []
    found = [int((bus / name.lower() / "numa_node").read_text()) for name in names]
    return [] if -1 in found else found


def ranges(numbers: list[int]) -> str:
    """Sorted numbers as taskset writes them, such as `0-3,8`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
