"""How much memory a rank has, whether it is a GPU's or a share of its node's, and the size of the model it trains."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from training.models.base import Model
from training.parallel.ranks import Ranks
from training.parallel.sums import Size

_NO_LIMIT = 1 << 60  # version 1 of the control groups writes a huge number for "no limit"


def size_of(outline: Model, optimizer: str) -> Size:
    """The size of any model, which may be on the meta device, for an optimizer by its name in a job."""
    trained = [p for p in outline.parameters() if p.requires_grad]
    blocks = {id(p) for p in outline.blocks.parameters() if p.dim() == 2}
    by_muon = sum(p.numel() for p in trained if id(p) in blocks) if optimizer == "muon" else 0
    return Size(sum(p.numel() for p in outline.parameters()), sum(p.numel() for p in trained), by_muon)


def of_rank(ranks: Ranks, root: Path = Path("/")) -> int:
    """Bytes of the rank that has the fewest: a GPU's memory, or a node's divided among its ranks. Collective."""
    if ranks.device.type == "cuda":
        own = int(torch.cuda.get_device_properties(ranks.device).total_memory)
    else:
        own = of_node(root) // ranks.nodes.count(ranks.node)
    return -int(_maximum(ranks.maximum, -own))


def _maximum(maximum: Callable[[Tensor], Tensor], value: int) -> float:
    return float(maximum(torch.tensor([value], dtype=torch.float64))[0])


def of_node(root: Path = Path("/")) -> int:
    """Bytes that this process may use: the machine's memory, or less if a control group above it has a limit."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    mounts = root / "sys/fs/cgroup"
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers == "":
            places, name = [mounts, mounts / "unified"], "memory.max"
        elif "memory" in controllers.split(","):
            places, name = [mounts / "memory"], "memory.limit_in_bytes"
        else:
            continue
        own = Path(path.lstrip("/"))
        groups = [place / group for place in places for group in (own, *own.parents)]
        limits = [limit for group in groups for limit in (_limit(group / name), _inherited(group / "memory.stat"))]
        found += filter(None, limits)
    return min(found)


def _limit(path: Path) -> int:
    """The limit in a control group's file; 0: none."""
    try:
        return _number(path.read_text().strip())
    except OSError:
        return 0


def _inherited(path: Path) -> int:
    """The least limit of a control group and those above it, of which a container sees none; 0: there is none, or it is
    version 2, which does not say."""
    try:
        words = path.read_text().split()
    except OSError:
        return 0
    key = "hierarchical_memory_limit"
    return _number(words[words.index(key) + 1]) if key in words[:-1] else 0


def _number(text: str) -> int:
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else 0
