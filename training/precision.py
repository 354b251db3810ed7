"""Choose the training precision by measuring it, and measure the matmul peak that the training speed is compared with.

A processor's flags are not enough: without native bf16 instructions autocast takes 2.7 times as long as fp32, and torch
still says that bf16 is supported. So each rank times one of the model's blocks, forward and backward, and all ranks use
what is faster on the slowest of them.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.keys import JobError
from training.models.base import Model
from training.models.linear import has_faster_matmul, matmul

WORTH = 1.05
"""How many times as fast as fp32 a lower precision must be to be chosen."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class PrecisionChoice:
    """What matmuls are computed in: fp32, bf16 or fp16, the same on all ranks; and how it was found."""

    name: str
    times: dict[str, float]
    """Seconds of one block, forward and backward, on the slowest rank; empty if the job names the precision."""
    matmul_flops: float
    """Measured matmul peak of this rank in this precision, in floating-point operations a second."""

    @property
    def mixed(self) -> str:
        """accelerate's name of the precision."""
        return "no" if self.name == "fp32" else self.name

    def __str__(self) -> str:
        measured = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in self.times.items())
        how = f"measured on one block, slowest rank: {measured}" if measured else "as the job says"
        return f"precision {self.name} ({how}); matmul peak {self.matmul_flops / 1e9:.0f} GFLOP/s"


def candidates(device: torch.device) -> list[str]:
    """The precisions to measure on this device. bf16 needs a GPU of sm_80 or newer; V100 is sm_70."""
    if device.type != "cuda":
        return ["fp32", "bf16"]
    return ["fp32", "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"]


def choose(wanted: str, model: Model, device: torch.device, slowest: Callable[[Tensor], Tensor]) -> PrecisionChoice:
    """Choose a precision: `wanted`, or for auto the measured one. `slowest` returns the maximum of each value over all
    ranks, so that every rank makes the same choice. JobError for a precision that the device does not have."""
    if wanted == "fp16" and device.type != "cuda":
        raise JobError(f"train.precision = fp16; allowed on a {device.type.upper()}: auto, fp32, bf16")
    if wanted == "bf16" and device.type == "cuda" and "bf16" not in candidates(device):
        raise JobError("train.precision = bf16; allowed on a GPU older than sm_80: auto, fp32, fp16")
    times: dict[str, float] = {}
    if wanted == "auto":
        names = candidates(device)
        measured = slowest(torch.tensor([time_block(name, model, device) for name in names], dtype=torch.float64))
        times = dict(zip(names, measured.tolist(), strict=True))
        wanted = names[1] if times[names[1]] * WORTH < times["fp32"] else "fp32"
    return PrecisionChoice(wanted, times, matmul_peak(wanted, model, device))


def time_block(name: str, model: Model, device: torch.device) -> float:
    """Seconds of a forward and a backward pass through a copy of the model's first block, without dropout. One on the
    meta device gets small values."""
    block, shape = copy.deepcopy(model.blocks[0]).eval(), model.shape
    if any(p.is_meta for p in block.parameters()):
        block.to_empty(device=device)
        for parameter in block.parameters():
            nn.init.constant_(parameter, 0.02)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        x = torch.randn(1, shape.block_size, shape.n_embd, device=device, requires_grad=True)

    def once() -> None:
        mixed = torch.autocast(device.type, DTYPES[name]) if name != "fp32" else contextlib.nullcontext()
        with mixed:
            y = block(x)
        y.float().sum().backward()

    return best_time(once, device, seconds=0.4)


def matmul_peak(name: str, model: Model, device: torch.device) -> float:
    """Floating-point operations a second of the largest matmul in a block, at the best of several."""
    rows = max(model.shape.block_size, 1024)
    outputs, inputs = max((p.shape for p in model.blocks[0].parameters() if p.dim() == 2), key=torch.Size.numel)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        a = torch.randn(rows, inputs, device=device).to(DTYPES[name])
        b = torch.randn(outputs, inputs, device=device).to(DTYPES[name])
    out = torch.empty(rows, outputs, device=device, dtype=DTYPES[name])

    def once() -> None:
        matmul(a, b) if has_faster_matmul(a, b) else torch.mm(a, b.t(), out=out)

    return 2 * rows * inputs * outputs / best_time(once, device, seconds=0.5)


def best_time(once: Callable[[], None], device: torch.device, *, seconds: float) -> float:
    """Seconds of the fastest run, once no run has been 1 % faster for `seconds`; of at least 3, in 10 * `seconds`."""
    once()  # the first run sets up kernels and memory
    best, runs = float("inf"), 0
    begin = improved = time.perf_counter()
    while runs < 3 or time.perf_counter() < min(improved, begin + 9 * seconds) + seconds:
        _wait(device)
        start = time.perf_counter()
        once()
        _wait(device)
        took = time.perf_counter() - start
        if took < 0.99 * best:
            improved = time.perf_counter()
        best = min(best, took)
        runs += 1
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
