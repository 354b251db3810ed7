"""Which part of every parameter a rank holds: some of its rows, the first dimension, as torch's fully_shard divides
it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Shard:
    """The part `index`, counted from 0, of `count`."""

    index: int = 0
    count: int = 1

    def rows(self, length: int) -> tuple[int, int]:
        """This part's rows [first, last) of `length`: parts are of equal size, rounded up; the last ones may have fewer
        or none."""
        size = -(-length // self.count)
        first = min(self.index * size, length)
        return first, min(first + size, length)

    def of(self, tensor: Tensor) -> Tensor:
        """This part of a tensor, as a view; a number, without rows, is whole in every part."""
        if tensor.dim() == 0 or self.count == 1:
            return tensor
        first, last = self.rows(tensor.size(0))
        return tensor[first:last]


WHOLE = Shard()


def local(tensor: Tensor) -> Tensor:
    """The values that this rank has of a tensor: its rows of a sharded one, without a copy; else the tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
