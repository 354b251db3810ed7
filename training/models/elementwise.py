"""Llama's norm and its rotation, each as one function with a backward pass of its own.

Composed of torch's operations they go over the activations many times on a CPU: torch's own rms_norm takes three times
as long there (256 x 512 on one core of an EPYC: 1.5 ms, here 0.5 ms, forward and backward), and the rotation would keep
its input for the backward pass, which it does not need.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight (arXiv:1910.07467) over the last dimension, computed in fp32. The result
    is in x's type, under autocast in the matmuls' type: so it is cast once, not by each matmul that reads it."""
    device = x.device.type
    mixed = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if mixed else x.dtype
    with torch.autocast(device, enabled=False):
        if device == "cpu" and not torch.compiler.is_compiling():
            normed: Tensor = _RMSNorm.apply(x, weight, epsilon, dtype)
            return normed
        return functional.rms_norm(x, weight.shape, weight.to(x.dtype), epsilon).to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (rows, length, heads, width) with each pair (i, i + width / 2) of the last dimension turned by its angle:
    cos and sin (length, 1, width / 2), fp32. In x's type."""
    turned: Tensor = _Turn.apply(x, cos, sin)
    return turned


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = length.square_().div_(x.size(-1)).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        normed, gradient = x.float() * scale, gradient.float()
        product = gradient * normed
        grad_weight = product.flatten(0, -2).sum(0)
        mean = (product @ weight.float()).div_(-x.size(-1))[..., None]
        grad_x = (gradient * weight).addcmul_(normed, mean).mul_(scale)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None, None


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=3)
    return torch.cat(((a * cos).addcmul_(b, sin, value=-1), (b * cos).addcmul_(a, sin)), dim=3).to(x.dtype)
