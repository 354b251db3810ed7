"""The measurements of the network test, in torch: each directed link's bandwidth, then a checked all-reduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Enter = Callable[[str], None]
"""Called with the name of the current phase, for error messages."""

KIB, MIB = 2**10, 2**20
FIRST = 256 * KIB
"""Bytes of the first transfer: more than a traffic shaper's burst, so that a slow link shows, yet quick over one."""
FULL = 4 * MIB
"""Bytes of the largest transfer."""
SLOW_S = 0.02
"""A transfer that took longer than this is accurate enough; no larger one follows."""
SUSPECT = 0.6
"""A link below this fraction of the best is measured again, as a briefly busy processor also makes a link look slow."""


def measure(
    names: Sequence[str], rank: int, address: str, enter: Enter, *, timeout: float, budget: float, enough: float
) -> dict[str, Any]:
    """Join the other ranks at `address` (host:port) and measure. Only rank 0's `links` are filled. `timeout`: of gloo,
    in seconds; `budget`: seconds for all links; `enough`: bytes per second from which a link is not measured again.
    Raises RuntimeError when a rank is missing or the connection breaks."""
    enter("meeting of the ranks")
    join = {"init_method": f"tcp://{address}", "rank": rank, "world_size": len(names)}
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout), **join)
    links = measure_links(names, rank, enter, budget, enough)
    enter("all-reduce")
    reduced = all_reduce(rank, len(names))
    dist.barrier()
    return {"links": links, **reduced}


def measure_links(
    names: Sequence[str], rank: int, enter: Enter, budget: float, enough: float
) -> list[list[float | None]]:
    """Bytes per second from each rank (row) to each rank (column), on rank 0; None: not measured within the budget.
    Rank 0 tells the ranks who sends to whom, so that only one link is busy at a time."""
    world = len(names)
    links: list[list[float | None]] = [[None] * world for _ in range(world)]
    if rank != 0:
        follow(names, rank, enter)
        return links
    deadline = time.monotonic() + budget
    # In the order of distance, so that every node has sent and received even if the budget ends early.
    pairs = [(s, (s + d) % world) for d in range(1, world) for s in range(world)]
    for _ in range(5):
        for sender, receiver in pairs:
            if time.monotonic() > deadline:
                break
            enter(f"link {names[sender]} -> {names[receiver]}")
            links[sender][receiver] = max(lead(sender, receiver), links[sender][receiver] or 0.0)
        best = max((value for row in links for value in row if value), default=0.0)
        pairs = [(s, r) for s, r in pairs if (links[s][r] or 0.0) < min(SUSPECT * best, enough)]
    for other in range(1, world):
        dist.send(torch.tensor([-1, -1]), other)
    return links


def lead(sender: int, receiver: int) -> float:
    """On rank 0: have one link measured; returns the sender's result in bytes per second."""
    for rank in {sender, receiver} - {0}:
        dist.send(torch.tensor([sender, receiver]), rank)
    if sender == 0:
        return send_timed(receiver)
    if receiver == 0:
        receive(sender)
    found = torch.zeros(1, dtype=torch.float64)
    dist.recv(found, sender)
    return float(found)


def follow(names: Sequence[str], rank: int, enter: Enter) -> None:
    """On the other ranks: measure the links that rank 0 asks for, until it sends -1."""
    order = torch.zeros(2, dtype=torch.int64)
    while True:
        enter("waiting for the next link")
        dist.recv(order, 0)
        sender, receiver = order.tolist()
        if sender < 0:
            return
        enter(f"link {names[sender]} -> {names[receiver]}")
        if rank == sender:
            dist.send(torch.tensor([send_timed(receiver)], dtype=torch.float64), 0)
        else:
            receive(sender)


def send_timed(receiver: int) -> float:
    """Best bandwidth of up to four acknowledged transfers, in bytes per second."""
    best, size = 0.0, FIRST
    for _ in range(4):
        took = transfer(receiver, size)
        best = max(best, size / took)
        if took > SLOW_S:
            break
        size = min(4 * size, FULL)
    dist.send(torch.tensor([0]), receiver)
    return best


def transfer(receiver: int, size: int) -> float:
    """Seconds from the first byte to the receiver's acknowledgement."""
    block, done = torch.zeros(size, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    dist.send(torch.tensor([size]), receiver)
    dist.recv(done, receiver)  # the receiver has allocated its memory, so that is not timed
    start = time.perf_counter()
    dist.send(block, receiver)
    dist.recv(done, receiver)
    return time.perf_counter() - start


def receive(sender: int) -> None:
    """The receiver's side of send_timed."""
    size, done = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.uint8)
    while True:
        dist.recv(size, sender)
        if not int(size):
            return
        block = torch.zeros(int(size), dtype=torch.uint8)
        dist.send(done, sender)
        dist.recv(block, sender)
        dist.send(done, sender)


def all_reduce(rank: int, world: int) -> dict[str, Any]:
    """Time a sum over all ranks and check every element on every rank. Returns bytes, seconds, algorithm and bus
    bandwidth in bytes per second, and the number of wrong elements."""
    size, wrong, took = MIB, 0, 0.0
    for attempt in range(3):
        # Whole numbers whose sums stay below 2^24 are exact in fp32 in any order of addition.
        pattern = torch.arange(size // 4, dtype=torch.float32) % 1000
        values = pattern * (rank + 1)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        wrong += int((values != pattern * (world * (world + 1) // 2)).sum())
        if attempt == 0 and float(slowest) <= 0.1:
            size = 16 * MIB
            continue
        took = min(took or float(slowest), float(slowest))
        if attempt == 0:
            break  # the larger size would take seconds
    total = torch.tensor([wrong])
    dist.all_reduce(total)
    algorithm = size / took
    bus = algorithm * 2 * (world - 1) / world  # as nccl-tests define it: what each link of a ring carries
    return {"bytes": size, "seconds": took, "algbw": algorithm, "busbw": bus, "wrong": int(total)}
