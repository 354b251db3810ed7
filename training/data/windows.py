"""The windows of a split, and which of them a step reads: the interface between a model's data and the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from training import manifest
from training.data import order
from training.keys import JobError
from training.manifest import STREAM

if TYPE_CHECKING:
    from training.data.token_set import TokenSet
    from training.models.base import Model

Array: TypeAlias = npt.NDArray[Any]


class Windows(Protocol):
    """A split as windows of tokens, named by numbers: which of them a step reads, and what is in them."""

    width: int
    """Tokens of a window."""
    position: dict[str, Any] | None
    """What a checkpoint keeps of the place in the data; None: the step is enough."""

    def batch(self, size: int, seed: int, step: int) -> Array:
        """The windows, int64 (size), that a step (counted from 0) reads: from the arguments alone."""

    def evaluation(self, count: int) -> Array:
        """At most `count` windows, int64, spread evenly over the split: always the same."""

    def tokens(self, chosen: Array) -> Array:
        """The number of tokens of text in each of these windows."""

    def read(self, chosen: Array) -> Array:
        """The tokens of these windows: int64 (windows, width)."""


def of_splits(model: Model, data: TokenSet) -> dict[str, Windows]:
    """The windows of each split, as the model divides it, but not of text that is read while training (see
    training.data.stream.client). JobError for a split that has none."""
    found = {}
    for split in manifest.SPLITS:
        if split == "train" and STREAM in data.manifest:
            continue
        try:
            found[split] = model.windows(getattr(data, split), data.separator)
        except order.OrderError as error:
            raise JobError(f"data.path = {data.path}: the {split} split: {error}") from None
    return found


class StreamWindows:
    """Windows of `block` tokens cut from the stream wherever they end, each with the next token. A window is named by
    the place where it begins. OrderError if there is none."""

    position: dict[str, Any] | None = None

    def __init__(self, split: Array, block: int) -> None:
        order.windows(len(split), block)
        self.split, self.block, self.width = split, block, block + 1

    def batch(self, size: int, seed: int, step: int) -> Array:
        return order.batch_windows(len(self.split), self.block, size, seed, step)

    def evaluation(self, count: int) -> Array:
        return order.evaluation_windows(len(self.split), self.block, count)

    def tokens(self, chosen: Array) -> Array:
        return np.full(len(chosen), self.block)

    def read(self, chosen: Array) -> Array:
        return order.crops(self.split, chosen, self.block)
