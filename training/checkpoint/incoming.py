"""The tensors of a checkpoint as they come to a rank: from its own disk or memory, or sent by a rank that has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from training.parallel.ranks import Ranks
from training.parallel.shard import Shard

if TYPE_CHECKING:
    from training.checkpoint.state import Saved


class TensorSource(Protocol):
    """Whole tensors by name: on a disk (training.checkpoint.reader.Part) or in memory."""

    def __getitem__(self, name: str, /) -> Tensor: ...

    def rows(self, name: str, first: int, last: int) -> Tensor:
        """The rows [first, last) of a tensor."""


class Incoming(Mapping[str, Tensor]):
    """By name (`model.NAME` of a parameter, `exp_avg.NAME` and so on of the optimizer) this rank's rows of a tensor.

    If a rank does not have them, each tensor is sent to all ranks, whole, one at a time: then every rank must
    ask for the same names in the same order.
    """

    def __init__(self, saved: Saved, ranks: Ranks, shard: Shard, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """`shapes` are those of the whole tensors."""
        self._saved, self._ranks, self._shard, self._shapes = saved, ranks, shard, shapes
        self._parts = saved.parts

    def __getitem__(self, name: str) -> Tensor:
        part, key = ("model", name.removeprefix("model.")) if name.startswith("model.") else ("optimizer", name)
        shape = self._shapes[name]
        if not self._saved.send and shape:
            return self._parts[part].rows(key, *self._shard.rows(shape[0]))
        whole = self._parts[part][key] if self._parts else torch.empty(shape)
        if self._saved.send:
            self._ranks.broadcast(whole, self._saved.source)
        return self._shard.of(whole)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)
