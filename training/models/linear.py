"""Linear layers. In fp32 on an AMD CPU their matmuls are oneDNN's: torch calls MKL, which is slower there.

On two cores of an EPYC with AVX-512, 2,048 rows: MKL 162 to 203 GFLOP/s, oneDNN 199 to 221 in the forward pass and for
the gradient of the input; that of the weight is as fast with MKL, and left to it. On Intel's CPUs, and in bf16, which
torch gives to oneDNN by itself, nothing changes. The choice is by the CPU's maker, and not measured, so that a job that
is resumed on the same nodes computes the same bits.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LEAST = 2**24
"""Multiplications below which the call costs more than it gains."""


class Linear(nn.Linear):
    """torch's linear layer, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in_features) -> (..., out_features)."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., inputs) @ weight.T + bias, with weight (outputs, inputs) and bias (outputs)."""
    if not has_faster_matmul(x, weight):
        return functional.linear(x, weight, bias)
    y: Tensor = _Linear.apply(x, weight, bias)
    return y


def has_faster_matmul(x: Tensor, weight: Tensor) -> bool:
    """Whether `matmul` is faster than torch's own for these: x (..., inputs), weight (outputs, inputs)."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() * weight.size(0) >= LEAST
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and is_amd()
    )


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `linear`, by oneDNN; without a backward pass. The operation is the one that torch's compiler calls."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


@functools.cache
def is_amd() -> bool:
    """Whether this machine's CPU is AMD's, and torch has oneDNN."""
    try:
        facts = Path("/proc/cpuinfo").read_text()
    except OSError:  # macOS
        return False
    return "AuthenticAMD" in facts and torch.backends.mkldnn.is_available()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matmul(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        grad_x = matmul(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        grad_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, rows.sum(0) if ctx.needs_input_grad[2] else None
