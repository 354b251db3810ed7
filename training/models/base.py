"""The interface between a model and everything that trains, saves and samples it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn


class Model(nn.Module):
    """A model that can be trained by the loop: `model(*model.batch(windows, seeds))` is a loss."""

    shape_class: ClassVar[type[Any]]
    """A frozen dataclass of what the weights must be read with; its fields are keys of a job's [model] section, and
    block_size (tokens of context), vocab_size and n_embd (width of what passes from block to block) are among them."""
    hugging_face_prefix: ClassVar[str] = ""
    """What Hugging Face's `save_pretrained` puts before the names of parameters; files on the hub may lack it."""
    vocabulary_parameters: ClassVar[frozenset[str]] = frozenset()
    """Parameters with a row for each token. A model with a padded vocabulary fills the first rows from a file."""

    blocks: nn.ModuleList
    """The repeated layers: each maps hidden states (rows, length, n_embd) to the same shape. One is timed to choose a
    precision; a parallelism that shards a model wraps them one by one."""

    def __init__(self, shape: Any, dropout: float = 0.0) -> None:
        """Weights as the architecture initialises them, by torch's generator."""
        super().__init__()
        self.shape = shape
        self.dropout = dropout

    @classmethod
    def shape_of(cls, keys: Any, vocab_size: int) -> Any:
        """The shape that a job's [model] section asks for; `vocab_size`, the token set's, is used where it has 0."""
        shape = {field.name: getattr(keys, field.name) for field in dataclasses.fields(cls.shape_class)}
        return cls.shape_class(**{**shape, "vocab_size": keys.vocab_size or vocab_size})

    def batch(self, windows: Tensor, seeds: Sequence[int]) -> tuple[Tensor, ...]:
        """The arguments of `forward` for windows of tokens, int64 (rows, length + 1): inputs and the tokens after them.

        `seeds` has a number for each window, made of the job's seed, the step and the window's place in the step,
        whatever rank reads it: a masked model draws its masks from them, and every number of ranks trains on the same
        ones.
        """
        return windows[:, :-1], windows[:, 1:]

    def targets_per_window(self) -> int:
        """How many tokens of a window of `block_size` the loss sums over. The same for each window: a masked model
        masks a fixed number of them."""
        return int(self.shape.block_size)

    def forward(self, *batch: Tensor) -> Tensor:
        """Cross-entropy in nats, summed over all targets of the batch: a caller that accumulates, or that has a share
        of a batch, divides by the number of targets of the whole batch."""
        raise NotImplementedError

    def flops_per_token(self) -> float:
        """Floating-point operations of a training step, forward and backward, per token."""
        raise NotImplementedError

    def decays(self, name: str, parameter: Tensor) -> bool:
        """Whether weight decay applies to this parameter: to matrices, not to biases and norms."""
        return parameter.dim() >= 2

    def new_cache(self, rows: int) -> Any:
        """An empty cache for `logits`; None: the model has none, and is given the whole context for each token."""
        return None

    def logits(self, inputs: Tensor, cache: Any = None) -> Tensor:
        """Scores (rows, vocab_size) of the token after the last one. With a cache, `inputs` (rows, length) are the
        tokens that it has not seen. A model that cannot continue a text does not have it."""
        raise NotImplementedError(f"{type(self).__name__} does not continue a text")

    @classmethod
    def hugging_face(cls, name: str) -> tuple[str, bool]:
        """A parameter's name in Hugging Face's layout, without the prefix, and whether it is transposed there."""
        raise NotImplementedError(f"{cls.__name__} has no layout of Hugging Face's")

    @classmethod
    def hugging_face_config(cls, shape: Any) -> dict[str, Any]:
        """The config.json that goes with the weights."""
        raise NotImplementedError(f"{cls.__name__} has no layout of Hugging Face's")

    @classmethod
    def hugging_face_defaults(cls, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters, by our names, that Hugging Face's model has and ours may lack."""
        return {}
