"""Two models that are not GPT-2, in a few lines each: what the loop needs of a model is declared, not built in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.models import ARCHITECTURES
from training.models.base import Model

NAMES = {"bytes": "byte_models:ByteModel", "masked": "byte_models:MaskedModel"}


def add_to_table(_: int = 0) -> None:
    """Lets a job say model.architecture = bytes or masked; called on every rank."""
    ARCHITECTURES.update(NAMES)


@dataclass(frozen=True, kw_only=True)
class Shape:
    n_embd: int
    block_size: int
    vocab_size: int


class ByteModel(Model):
    """One layer that guesses a token from the one before."""

    shape_class = Shape

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout)
        self.tokens = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(shape.n_embd, shape.n_embd), nn.Tanh())])
        self.out = nn.Linear(shape.n_embd, shape.vocab_size)

    def scores(self, inputs: Tensor) -> Tensor:
        hidden = functional.dropout(self.blocks[0](self.tokens(inputs)), self.dropout, self.training)
        scores: Tensor = self.out(hidden)
        return scores

    def forward(self, *batch: Tensor) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(self.scores(inputs).flatten(0, 1), targets.flatten(), reduction="sum")

    def logits(self, inputs: Tensor, cache: Any = None) -> Tensor:
        return self.scores(inputs)[:, -1]

    def flops_per_token(self) -> float:
        return float(6 * sum(p.numel() for p in self.parameters()))


class MaskedModel(ByteModel):
    """The loss is over three tokens of each window, drawn by its seed, which the inputs do not show."""

    def targets_per_window(self) -> int:
        return 3

    def batch(self, windows: Tensor, seeds: Sequence[int]) -> tuple[Tensor, ...]:
        tokens = windows[:, :-1]
        assert len(seeds) == len(tokens)
        draws = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
        places = torch.stack([torch.randperm(tokens.size(1), generator=draw)[:3] for draw in draws])
        return tokens.scatter(1, places, 0), tokens.gather(1, places), places

    def forward(self, *batch: Tensor) -> Tensor:
        inputs, targets, places = batch
        scores = self.scores(inputs.roll(1, 1)).gather(1, places[..., None].expand(-1, -1, self.shape.vocab_size))
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
