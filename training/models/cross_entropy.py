"""The output layer and the cross-entropy in one function, computed for a slice of the tokens at a time.

Computed separately, the logits of all tokens would be in memory several times: 4 x 1,024 tokens of GPT-2 take 823 MB in
fp32, and log-softmax, its gradient and the cast under autocast take as much again. Here only one slice's logits are in
memory, and only the gradients of the hidden state and of the weight are kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from training.models.linear import has_faster_matmul, matmul

SLICE_BYTES = 128 * 2**20
"""Bytes of a slice's logits in fp32: small enough for the cache, large enough for the matmuls to run at full speed."""
FASTER_SLICE_BYTES = 32 * 2**20 - 2**16
"""The same where oneDNN computes the logits, each time into new memory: larger blocks glibc returns to the kernel when
they are freed, and the next slice would wait for fresh pages."""


def summed_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    """Sum over tokens of -log softmax(hidden @ weight.T + bias)[target], fp32. hidden (tokens, width), weight
    (vocabulary, width), targets (tokens) int64, at least one, bias (vocabulary) fp32."""
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        loss: Tensor = _SlicedCrossEntropy.apply(hidden, weight, targets, bias, torch.is_grad_enabled())
    return loss


class _SlicedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, training: bool
    ) -> Tensor:
        faster = has_faster_matmul(hidden, weight)
        size, tile = (FASTER_SLICE_BYTES, 64) if faster else (SLICE_BYTES, 256)
        rows = max(16, size // (4 * weight.size(0)))
        rows = min(rows // tile * tile or rows, hidden.size(0))  # the matmuls like whole tiles: up to 5 % of their time
        # One set of buffers for all slices: fresh ones of this size are fresh pages each time, a fifth of the time.
        products = hidden.new_empty((0 if faster else rows, weight.size(0)))
        softmaxes = products.new_empty((rows, weight.size(0)), dtype=torch.float32)
        loss = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden) if training else None
        grad_weight = torch.empty_like(weight, dtype=torch.float32) if training else None
        grad_bias = torch.zeros_like(bias) if training and bias is not None else None
        for start in range(0, hidden.size(0), rows):
            part, wanted = hidden[start : start + rows], targets[start : start + rows, None]
            product = products[: part.size(0)]
            logits = matmul(part, weight) if faster else torch.mm(part, weight.t(), out=product).float()
            if bias is not None:
                logits += bias
            softmax = torch.softmax(logits, dim=1, out=softmaxes[: part.size(0)])
            # logsumexp = top - log(largest softmax), which is at least 1 / vocabulary, so its log is finite
            top, largest = logits.amax(dim=1, keepdim=True), softmax.amax(dim=1, keepdim=True)
            loss += (top - largest.log() - logits.gather(1, wanted)).sum()
            if grad_hidden is None or grad_weight is None:
                continue
            softmax.scatter_add_(1, wanted, softmax.new_full((1, 1), -1.0).expand_as(wanted))
            if grad_bias is not None:
                grad_bias += softmax.sum(0)
            gradient = softmax if weight.dtype == torch.float32 else product.copy_(softmax)
            if faster:
                grad_hidden[start : start + rows] = matmul(gradient, weight.t())
            else:
                torch.mm(gradient, weight, out=grad_hidden[start : start + rows])
            if weight.dtype == torch.float32:
                grad_weight.addmm_(gradient.t(), part, beta=0 if start == 0 else 1)  # 0: ignore the old value
            elif start == 0:
                grad_weight.copy_(gradient.t() @ part)
            else:  # slices are added up in fp32
                grad_weight += gradient.t() @ part
        if training:
            ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None, None]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        grad_bias = None if grad_bias is None else grad_bias.mul_(grad_loss)
        return grad_hidden.mul_(grad_loss), grad_weight.mul_(grad_loss), None, grad_bias, None
