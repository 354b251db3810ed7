"""The all-reduce of groups of GPUs, in torch: within each node, over all nodes, and between every two of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from infra.inventory import Node
from node.job.rank_wrapper import RankPlacement
from node.probes import nccl, nccl_output, say

MIB = 2**20
TIMES = 10


class Groups:
    """This rank's part in the measurements. Without a GPU they are gloo's, and small: so tests run them."""

    def __init__(self, place: RankPlacement, enter: Callable[[str], None], log: Path) -> None:
        """`enter` is called with the name of each phase; `log` is the file that NCCL writes to (NCCL_DEBUG_FILE)."""
        self.place, self.enter, self.log = place, enter, log
        has_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", place.local_rank) if has_gpu else torch.device("cpu")
        self.bytes = 256 * MIB if has_gpu else MIB
        self.nodes = [node for node in place.nodes for _ in range(node.slots)]
        """The node of each rank."""

    def measure(self, address: str, *, timeout: float, budget: float) -> dict[str, Any]:
        """Join the other ranks at `address` (host:port), and measure; `timeout` and `budget` as in gpu_ranks.py.
        RuntimeError when a rank is missing or a connection breaks."""
        self.enter("meeting of the ranks")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        join = {"init_method": f"tcp://{address}", "rank": self.place.rank, "world_size": len(self.nodes)}
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **join)
        self._measure_groups([[node] for node in self.place.nodes if node.slots > 1])
        until = time.monotonic() + budget
        for group in nccl.between(self.place.nodes):
            goes_on = torch.tensor([len(group) == len(self.place.nodes) or time.monotonic() < until])
            dist.broadcast(goes_on, 0)  # on the CPU, as all that is no measurement
            if not goes_on:
                break
            self._measure_groups([group])
        return {}

    def _measure_groups(self, groups: Sequence[Sequence[Node]]) -> None:
        """Measure groups of nodes at the same time, which share no node."""
        members = [[rank for rank, node in enumerate(self.nodes) if node in group] for group in groups]
        handles = [dist.new_group(ranks) for ranks in members]  # all ranks have to call it for each
        for group, ranks, handle in zip(groups, members, handles, strict=True):
            if self.place.rank in ranks:
                self._measure_group([node.name for node in group], ranks, handle)
        self.enter("waiting for the next group")
        dist.all_reduce(torch.zeros(1))

    def _measure_group(self, names: Sequence[str], ranks: Sequence[int], group: dist.ProcessGroup) -> None:
        """Measure this rank's own group, of the nodes with these `names`; its first rank prints what came of it."""
        self.enter(f"all-reduce over {' and '.join(names)}")
        begins = len(self._logged())
        found = self._all_reduce(group, ranks.index(self.place.rank), len(ranks))
        if self.place.rank == ranks[0]:
            say(rank=self.place.rank, event="nccl", nodes=names, **found, **self._nccl(begins))
        dist.destroy_process_group(group)

    def _all_reduce(self, group: dist.ProcessGroup, index: int, ranks: int) -> dict[str, Any]:
        """Check a sum over the group, then time several; `index` is this rank's in the group. Returns the size in
        bytes, bus and algorithm bandwidth in bytes per second, and the number of wrong elements."""
        # Whole numbers whose sums stay below 2^24 are exact in fp32 in any order of addition: of up to 570 ranks.
        pattern = torch.arange(self.bytes // 4, dtype=torch.float32, device=self.device) % 100
        values = pattern * (index + 1)
        dist.all_reduce(values, group=group)
        wrong = (values != pattern * (ranks * (ranks + 1) // 2)).sum()
        dist.all_reduce(wrong, group=group)
        values.zero_()
        began = self._now()
        for _ in range(TIMES):
            dist.all_reduce(values, group=group)
        slowest = torch.tensor([(self._now() - began) / TIMES], dtype=torch.float32, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        algorithm = self.bytes / float(slowest)
        bus = algorithm * 2 * (ranks - 1) / ranks  # as nccl-tests define it: what each link of a ring carries
        return {"size": self.bytes, "bus": bus, "algorithm": algorithm, "wrong": int(wrong)}

    def _now(self) -> float:
        """The time when this rank's GPU has done all that it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _logged(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def _nccl(self, begins: int) -> dict[str, Any]:
        """What NCCL said of the group that was made after so many lines of its log. Its network, and the provider that
        carries it, it may say once, for all groups."""
        lines = self._logged()
        whole, own = nccl_output.parse(lines), nccl_output.parse(lines[begins:])
        return {**{key: whole[key] for key in ("network", "provider")}, "ways": own["ways"], "warning": own["warning"]}
