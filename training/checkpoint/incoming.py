"""The tensors of a checkpoint as they come to a rank: read from its own disk, or sent by a rank whose node has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from training.checkpoint.reader import Part
from training.parallel.ranks import Ranks
from training.parallel.shard import Shard

if TYPE_CHECKING:
    from training.checkpoint.state import Saved


class Incoming(Mapping[str, Tensor]):
    """By name (`model.NAME` of a parameter, `exp_avg.NAME` and so on of the optimizer) this rank's rows of a tensor.

    If a node does not have the checkpoint, each tensor is sent to all ranks, whole, one at a time: then every rank must
    ask for the same names in the same order.
    """

    def __init__(self, saved: Saved, ranks: Ranks, shard: Shard, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """`shapes` are those of the whole tensors. CheckpointError if the files cannot be read."""
        self._saved, self._ranks, self._shard, self._shapes = saved, ranks, shard, shapes
        self._parts = {name: Part(saved.folder, name) for name in ("model", "optimizer")} if saved.own else {}

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
