"""Where the bench of a step runs: on this machine's GPU, if it has one, else on the CPU, which it says."""

from __future__ import annotations

import sys

import torch

CHOICES = ("auto", "cuda", "cpu")


def chosen(wanted: str) -> torch.device:
    """Exit code 2, in one line, where a GPU is asked for and there is none."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        print(f"--device cuda: no GPU here that torch {torch.__version__} can use", file=sys.stderr)
        raise SystemExit(2)
    if wanted == "auto" and not there:
        print("no GPU here: measured on the CPU")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")
