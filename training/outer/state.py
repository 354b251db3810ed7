"""The outer optimizer's state, and its step: the same numbers on every rank of every cluster.

All of it is fp32 on the CPU, the parameters one after the other in one tensor: 12 bytes a parameter, and 4 more while a
round's differences are on their way. An update is made of single multiplications and additions, each exactly rounded:
torch's fused ones differ in the last digit from processor to processor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.outer import quantise
from training.sections import OuterSection

Parts = Mapping[int, tuple[int, bytes]]
"""The differences of a round by cluster: its weight, and the packed numbers."""


@dataclass
class OuterState:
    """SGD with Nesterov's momentum over the mean of the clusters' differences, as DiLoCo has it (arXiv:2311.08105).
    Each tensor has the shape (parameters,)."""

    rounds: int
    """Rounds that are done."""
    parameters: Tensor
    """The parameters after them."""
    momentum: Tensor
    error: Tensor
    """What quantisation has left out of the differences that this cluster has sent so far."""
    sent: Tensor | None = None
    """The cluster's own parameters when it put the next round's differences into the bucket; None: it has not."""

    @classmethod
    def first(cls, parameters: Tensor) -> OuterState:
        """Before the first round."""
        return cls(0, parameters, torch.zeros_like(parameters), torch.zeros_like(parameters))

    def difference(self, bits: int) -> bytes:
        """What this cluster sends for the next round, whose own parameters are in `sent`. ValueError if they are not
        finite."""
        assert self.sent is not None
        return quantise.packed(self._owed(), bits)

    def apply(self, outer: OuterSection, parts: Parts, own: int) -> None:
        """Do the outer step of the next round, whose differences are `parts`; `own` is this cluster's number."""
        decoded = {each: quantise.unpacked(raw, len(self.momentum), outer.bits) for each, (_, raw) in parts.items()}
        if own in decoded and self.sent is not None:
            self.error = self._owed().sub_(decoded[own])  # what counts is what is in the bucket
        gradient = mean([(weight, decoded[each]) for each, (weight, _) in sorted(parts.items())])
        self.momentum.mul_(outer.momentum).add_(gradient)
        self.parameters.sub_(self.momentum.mul(outer.momentum).add_(gradient).mul_(outer.lr))
        self.rounds += 1
        self.sent = None

    def digest(self) -> str:
        """Of the parameters: clusters that begin a round with others would not train the same model."""
        return hashlib.sha256(memoryview(self.parameters.numpy())).hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        found = {"parameters": self.parameters, "momentum": self.momentum, "error": self.error}
        return found if self.sent is None else {**found, "sent": self.sent}

    def _owed(self) -> Tensor:
        assert self.sent is not None
        return (self.parameters - self.sent).add_(self.error)


def mean(parts: Iterable[tuple[int, Tensor]]) -> Tensor:
    """The weighted mean of tensors, summed up in the given order; equal weights count as 1 each."""
    listed = list(parts)
    equal = len({weight for weight, _ in listed}) == 1
    total = torch.zeros_like(listed[0][1])
    for weight, values in listed:
        total.add_(values if equal else values * weight)
    return total.div_(len(listed) if equal else sum(weight for weight, _ in listed))


def flat(model: nn.Module) -> Tensor:
    """A copy of the model's parameters, one after the other: fp32 on the CPU."""
    return torch.cat([p.detach().reshape(-1).to("cpu", torch.float32) for p in model.parameters()])


@torch.no_grad()  # type: ignore[untyped-decorator]
def fill(model: nn.Module, values: Tensor) -> None:
    """Set the model's parameters to what `flat` returned."""
    parameters = list(model.parameters())
    for parameter, own in zip(parameters, values.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(own.view_as(parameter))
