"""One rank of the network test: every directed link's bandwidth, one at a time, then a checked all-reduce.

Started on every node by mpirun, in the Python environment of the ranks:

    python allreduce.py '{"names": [...], "addresses": [...], "port": p, "interface": "", "timeout": s, ...}'

Every rank prints `{"rank", "event": "alive", "phase"}` every second or two, and `{"rank", "event": "error", ...}` when
it fails; rank 0 ends with `{"event": "result", ...}` as its last line. A rank that says nothing any more hangs or is
cut off: the others wait for it until gloo's time-out, so only its silence tells which one it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

Spec = dict[str, Any]
BEAT_S = 1.5
phase = "import of torch"


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")  # one write: the lines of many ranks go through one pipe
    sys.stdout.flush()


def beat() -> None:
    while phase != "end":
        say(rank=int(os.environ["PMI_RANK"]), event="alive", phase=phase)
        time.sleep(BEAT_S)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # nothing here computes; idle threads would only disturb the clock
    threading.Thread(target=beat, daemon=True).start()

# Not at the top: the import takes seconds on a busy node, and the rank should be heard meanwhile.
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

KIB, MIB = 2**10, 2**20
FIRST = 256 * KIB
"""Enough to see a slow link (more than a shaper's burst), little enough to be sent over one in a moment."""
FULL = 4 * MIB
SLOW_S = 0.02
"""A transfer that took longer is measured well enough: no larger one, no repeat."""
SUSPECT = 0.6
"""Below this part of the best a link is measured again: a busy processor looks like a slow link, but only once."""


def main() -> None:
    spec: Spec = json.loads(sys.argv[1])
    rank, world = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    try:
        join(spec, rank, world)
        links = measure_links(spec, rank, world)
        reduced = all_reduce(rank, world)
        dist.barrier()
        enter("end")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told with the phase it happened in
        say(rank=rank, event="error", phase=phase, error=" ".join(str(error).split())[:300])
        os._exit(1)  # destroying the group would wait for the rank that hangs
    if rank == 0:
        say(rank=0, event="result", links=links, **reduced)
    dist.destroy_process_group()


def enter(name: str) -> None:
    """Remember what is going on, for the error that may come."""
    global phase
    phase = name


def join(spec: Spec, rank: int, world: int) -> None:
    enter("meeting of the ranks")
    head = spec["addresses"][0]
    if world > 1:
        toward = spec["addresses"][1] if rank == 0 else head
        os.environ["GLOO_SOCKET_IFNAME"] = spec["interface"] or interface(toward)
    host = f"[{head}]" if ":" in head else head
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{host}:{spec['port']}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=spec["timeout"]),
    )


def interface(address: str) -> str:
    """The interface that the route to an address goes through."""
    found = subprocess.run(
        ["ip", "-j", "route", "get", address], capture_output=True, text=True, timeout=10, check=True
    )
    return str(json.loads(found.stdout)[0]["dev"])


# --- links: rank 0 says who sends to whom, so that only one link is busy at a time ---


def measure_links(spec: Spec, rank: int, world: int) -> list[list[float | None]]:
    """Bytes per second from each rank (row) to each rank (column); None: not measured within the budget."""
    links: list[list[float | None]] = [[None] * world for _ in range(world)]
    if rank != 0:
        follow(spec["names"], rank)
        return links
    deadline = time.monotonic() + spec["budget"]
    # By distance: if the budget ends early, every node has still sent and received.
    pairs = [(s, (s + d) % world) for d in range(1, world) for s in range(world)]
    for _ in range(5):
        for sender, receiver in pairs:
            if time.monotonic() > deadline:
                break
            enter(f"link {spec['names'][sender]} -> {spec['names'][receiver]}")
            links[sender][receiver] = max(lead(sender, receiver), links[sender][receiver] or 0.0)
        best = max((value for row in links for value in row if value), default=0.0)
        pairs = [(s, r) for s, r in pairs if (links[s][r] or 0.0) < min(SUSPECT * best, spec["enough"])]
    for other in range(1, world):
        dist.send(torch.tensor([-1, -1]), other)
    return links


def lead(sender: int, receiver: int) -> float:
    """Have one link measured; the sender's finding."""
    for rank in {sender, receiver} - {0}:
        dist.send(torch.tensor([sender, receiver]), rank)
    if sender == 0:
        return send_timed(receiver)
    if receiver == 0:
        receive(sender)
    found = torch.zeros(1, dtype=torch.float64)
    dist.recv(found, sender)
    return float(found)


def follow(names: list[str], rank: int) -> None:
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
    """Best bandwidth of a few transfers, each acknowledged."""
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
    dist.recv(done, receiver)  # the receiver is ready: its memory is not part of the time
    start = time.perf_counter()
    dist.send(block, receiver)
    dist.recv(done, receiver)
    return time.perf_counter() - start


def receive(sender: int) -> None:
    """The other end of send_timed."""
    size, done = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.uint8)
    while True:
        dist.recv(size, sender)
        if not int(size):
            return
        block = torch.zeros(int(size), dtype=torch.uint8)
        dist.send(done, sender)
        dist.recv(block, sender)
        dist.send(done, sender)


# --- all-reduce ---


def all_reduce(rank: int, world: int) -> dict[str, Any]:
    """Time of a sum over all ranks, and whether every element of it is right on every rank."""
    enter("all-reduce")
    size, wrong, took = MIB, 0, 0.0
    for attempt in range(3):
        # Whole numbers below 2^24: their sums are exact in fp32 in whatever order they are added.
        pattern = torch.arange(size // 4, dtype=torch.float32) % 1000
        values = pattern * (rank + 1)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        wrong += int((values != pattern * (world * (world + 1) // 2)).sum())
        if attempt == 0:
            if float(slowest) > 0.1:  # the larger size would take seconds
                took = float(slowest)
                break
            size = 16 * MIB
        else:
            took = min(took or float(slowest), float(slowest))
    total = torch.tensor([wrong])
    dist.all_reduce(total)
    algorithm = size / took
    # As nccl-tests count it: what each link of a ring carries.
    return {
        "bytes": size,
        "seconds": took,
        "algbw": algorithm,
        "busbw": algorithm * 2 * (world - 1) / world,
        "wrong": int(total),
    }


if __name__ == "__main__":
    main()
