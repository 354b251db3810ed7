"""Ranks that do nothing but save a sharded checkpoint again and again, to be killed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gloo_ranks

NODES = ["node0", "node1", "node2"]


def start(folders: list[Path], begin: int, saves: int = 10**6, full_at: int = -1) -> gloo_ranks.Group:
    """Start a rank for each folder, a run directory, that saves `saves` steps from `begin` on.

    `full_at`: the rank whose disk is full from the second file on.
    """
    port = gloo_ranks.free_port()
    group = gloo_ranks.Group([], [])
    for rank, folder in enumerate(folders):
        folder.mkdir(parents=True, exist_ok=True)
        output = folder / f"output-{rank}-{time.monotonic_ns()}"
        arguments = (rank, [str(path) for path in folders], port, begin, saves, full_at, str(output))
        process = gloo_ranks._CONTEXT.Process(target=_rank, args=arguments)
        process.start()
        group.processes.append(process)
        group.outputs.append(output)
    return group


def values(step: int, rank: int) -> dict[str, Any]:
    """What a rank holds at a step: rows of one tensor, and the last rank none of another."""
    import torch

    rows = torch.arange(64 * 64, dtype=torch.float32).view(64, 64) + 1000.0 * step + rank
    return {"w": rows, **({"b": torch.full((2,), float(step))} if rank < 2 else {})}


def _rank(rank: int, runs: list[str], port: int, begin: int, saves: int, full_at: int, output: str) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import torch
    import torch.distributed as dist

    from training.checkpoint import files
    from training.checkpoint.background import Saver
    from training.checkpoint.together import Together
    from training.parallel.ranks import Ranks

    torch.set_num_threads(1)
    size = len(runs)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    ranks = Ranks(rank, size, 0, NODES[rank], 60, torch.device("cpu"), "gloo", nodes=NODES[:size])
    saver = Saver(Path(runs[rank]), 2, None, Together(ranks, runs[rank] == runs[0]))
    if rank == full_at:
        _fill(files)
    if rank == 0:
        files.tidy(Path(runs[0]) / "checkpoints")
        for step in files.steps(Path(runs[0]) / "checkpoints"):
            saver.verified.add(step)
    for step in range(begin, begin + saves):
        content = {files.part_file("model", rank, size): values(step, rank)}
        saver.save(content, {"step": step}, step=step, best=step % 3 == 0)
    try:
        saver.finish()
    except files.CheckpointError as error:
        print(error, flush=True)
        os._exit(1)
    dist.barrier()
    os._exit(0)


def _fill(files: Any) -> None:
    original, calls = files.write_pieces, [0]

    def full(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
        calls[0] += 1
        if calls[0] > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        found: dict[str, Any] = original(path, pieces)
        return found

    files.write_pieces = full
