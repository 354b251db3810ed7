"""What the benches of a training step share: where they run, and two sides whose steps are taken in turns."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import gpt2
import torch

sys.path.insert(0, str(gpt2.ROOT))

from training import precision

CHOICES = ("auto", "cuda", "cpu")
HEADINGS = f"{'tokens':7} {'':5} {'their tok/s':>12} {'our tok/s':>10} {'ratio':>6}"
"""Of `print_row`, behind the size's."""
Batch = TypeVar("Batch")


def chosen(wanted: str) -> torch.device:
    """This machine's GPU, if it has one, else its CPU, which is said. Exit code 2, in one line, where a GPU is asked
    for and there is none."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        print(f"--device cuda: no GPU here that torch {torch.__version__} can use", file=sys.stderr)
        raise SystemExit(2)
    if wanted == "auto" and not there:
        print("no GPU here: measured on the CPU")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def features(device: torch.device) -> str:
    """What is measured on, for the first line."""
    return torch.cuda.get_device_name() if device.type == "cuda" else gpt2.features()


def precisions(device: torch.device) -> Sequence[str]:
    """Those to measure in: fp32, and the mixed one that the device computes natively, if there is one."""
    native = device.type == "cuda" or {"avx512_bf16", "amx_bf16"} & set(features(device).split())
    return precision.candidates(device)[: 2 if native else 1]


def in_turns(
    sides: Mapping[str, Callable[[Batch], float]], batches: Sequence[Batch]
) -> tuple[dict[str, float], dict[str, float]]:
    """Each side's (median seconds of a step, loss of the first step). Every batch is for all sides, whose order
    changes; the first step sets up memory, and does not count."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    losses: dict[str, list[float]] = {side: [] for side in sides}
    for number, batch in enumerate(batches):
        for side in sorted(sides, reverse=number % 2 == 0):
            begun = time.perf_counter()
            losses[side].append(sides[side](batch))
            seconds[side].append(time.perf_counter() - begun)
    medians = {side: statistics.median(values[1:]) for side, values in seconds.items()}
    return medians, {side: values[0] for side, values in losses.items()}


def print_row(what: str, rows: int, block: int, seconds: Mapping[str, float], losses: Mapping[str, float]) -> float:
    """Print the tokens a second of `ours` and `theirs` and their ratio, which is returned."""
    ratio, tokens = seconds["theirs"] / seconds["ours"], rows * block
    speeds = f"{tokens / seconds['theirs']:12.0f} {tokens / seconds['ours']:10.0f} {ratio:6.2f}"
    print(f"{what} {speeds}   losses {losses['theirs']:.3f} {losses['ours']:.3f}", flush=True)
    return ratio
