"""Keys and values of the positions that a model has read, so that sampling reads each token once."""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Keys and values by layer, for a model whose attention looks back only."""

    def __init__(self, layers: int, rows: int, heads: int, length: int, width: int, like: Tensor) -> None:
        """Room for `length` positions of so many heads of keys, each `width` wide; on the device and in the type of
        `like`."""
        self.entries = like.new_empty((layers, 2, rows, heads, length, width))
        self.length = 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new positions of a layer, (rows, heads, new, width of a head); returns those of all positions."""
        end = self.length + k.size(2)
        self.entries[layer, 0, :, :, self.length : end] = k
        self.entries[layer, 1, :, :, self.length : end] = v
        return self.entries[layer, 0, :, :, :end], self.entries[layer, 1, :, :, :end]

    def mask(self, new: int) -> Tensor | None:
        """What the `new` positions after the cached ones see, bool (new, all); None for all that they have, a single
        one, and for the first ones, where attention's own `is_causal` does. It would align the mask to the top left."""
        if new == 1 or not self.length:
            return None
        positions = torch.arange(self.length + new, device=self.entries.device)
        return positions[None, :] <= positions[self.length :, None]
