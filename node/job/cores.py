"""Which cores a rank is pinned to: one thread per physical core, a NUMA node of its own if possible. Runs on a node."""

from __future__ import annotations

import subprocess
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
    return parse(subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True).stdout)


def parse(text: str) -> list[Core]:
    """The first thread of each physical core, from what `lscpu -p=CPU,CORE,NODE` prints."""
    first: dict[int, Core] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            cpu, core, node = (int(word or 0) for word in line.split(",")[:3])
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


def ranges(numbers: list[int]) -> str:
    """Sorted numbers as taskset writes them, such as `0-3,8`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
