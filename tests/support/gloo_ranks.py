"""Real ranks for the tests of training/: processes with gloo over loopback, forked from one that has torch loaded."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import token_files
from polling import until

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["training.train", "training.loop", "torch._dynamo", "torch.utils.tensorboard"])

TINY = """
[data]
path = "{data}"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 16
dropout = 0.1
[train]
steps = 8
global_batch_tokens = 112   # 7 windows: 3 ranks have 2, 2 and 3 of them
micro_batch = 2
lr = 0.01
min_lr = 0.001
warmup = 2
eval_every = 4
eval_windows = 5
precision = "fp32"
timeout = 20
[checkpoint]
every = 2
"""


def tiny_tokens(folder: Path) -> Path:
    """A text that repeats itself, in a vocabulary of 64: learnt in a few steps."""
    random = np.random.default_rng(0)
    text = np.tile(random.integers(0, 64, 50), 400)
    counts = {"train": 4 * len(text), "val": 8000}
    token_files.write(folder, train=text, val=text[:2000], vocab_size=64, encoding={"name": "gpt2"}, text_bytes=counts)
    return folder


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Group:
    """The ranks of one start of a job."""

    processes: list[Any]
    outputs: list[Path]

    def wait(self, timeout: float = 120) -> list[int]:
        """Exit codes, in the order of ranks."""
        end = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.1, end - time.monotonic()))
        late = [process for process in self.processes if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
        assert not late, f"ranks did not end within {timeout} s:\n{self.output()}"
        return [process.exitcode for process in self.processes]

    def done(self, timeout: float = 120) -> None:
        codes = self.wait(timeout)
        assert not any(codes), f"{codes}\n{self.output()}"

    def output(self, rank: int | None = None) -> str:
        chosen = self.outputs if rank is None else [self.outputs[rank]]
        return "".join(path.read_text() for path in chosen if path.exists())

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)


def start(
    job: Path,
    run: Path | Sequence[Path],
    size: int = 1,
    overrides: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    before: Callable[[int], None] | None = None,
) -> Group:
    """Starts every rank, each a node of its own: node0, node1, ... `run` is shared, or one directory per rank."""
    port = free_port()
    group = Group([], [])
    for rank in range(size):
        own = run if isinstance(run, Path) else run[rank]
        own.mkdir(parents=True, exist_ok=True)
        output = own / f"output-{rank}-{time.monotonic_ns()}"
        values = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            "TRAINYARD_PLACE": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TRAINYARD_NODE": f"node{rank}",
            "RUN_DIR": str(own),
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        process = _CONTEXT.Process(target=_rank, args=([str(job), *overrides], values, str(output), before))
        process.start()
        group.processes.append(process)
        group.outputs.append(output)
    return group


def _rank(arguments: list[str], environment: dict[str, str], output: str, before: Callable[[int], None] | None) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    import torch

    from training import train

    torch.set_num_threads(1)
    if before is not None:
        before(int(environment["RANK"]))
    sys.exit(train.main(arguments))


def one_by_one(_: int) -> None:
    """For `before`: no checkpoint overtakes another one on its way to the bucket, as steps of a millisecond would."""
    from training.store.mirror import Mirror

    original = Mirror.offer

    def offer(self: Mirror, *what: Any, **more: Any) -> None:
        original(self, *what, **more)
        until(lambda: not self._next())

    Mirror.offer = offer  # type: ignore[method-assign]


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run: Path) -> dict[int, float]:
    """By step; a step that is there twice fails."""
    found = lines(run)
    assert [line["step"] for line in found] == list(range(1, len(found) + 1))
    return {line["step"]: line["loss"] for line in found}
