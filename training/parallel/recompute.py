"""Activation checkpointing: a block's activations are computed again in the backward pass instead of being kept.

That costs a second forward pass, about a third more time, and leaves of each block only its input in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def apply(blocks: Iterable[nn.Module]) -> None:
    """Let each block recompute its activations. To be called before a block is wrapped by fsdp, whose hooks are around
    the forward pass: the block's parameters are then gathered for both."""
    for block in blocks:
        block.forward = partial(_recomputed, block.forward)


def _recomputed(forward: Callable[..., Tensor], *inputs: Any) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(*inputs)
    # torch resets its own generators for the second pass; RoBERTa's dropout brings generators of its own.
    generators = [generator for value in inputs for generator in getattr(value, "generators", ())]
    before = [generator.get_state() for generator in generators]

    def run(*inputs: Any) -> Tensor:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        return forward(*inputs)

    out: Tensor = checkpoint(run, *inputs, use_reentrant=False)
    return out
