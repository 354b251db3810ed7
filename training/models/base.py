"""The interface between a model and everything that trains, saves and samples it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from training.data.windows import StreamWindows, Windows


class Model(nn.Module):
    """A model that can be trained by the loop: `model(*model.batch(windows, seeds))` is a loss."""

    shape_class: ClassVar[type[Any]]
    """A frozen dataclass with everything needed to load the weights. Its fields are keys of a job's [model] section and
    include block_size (tokens of context), vocab_size and n_embd (width of the hidden states)."""
    hugging_face_prefix: ClassVar[str] = ""
    """The prefix that Hugging Face's `save_pretrained` gives to parameter names; files on the hub may lack it."""
    hugging_face_tokenizer: ClassVar[str] = ""
    """Hugging Face's class of the tokenizer that an export writes beside the weights; empty: it writes none."""
    vocabulary_parameters: ClassVar[frozenset[str]] = frozenset()
    """Parameters with a row for each token. If the model's vocabulary is padded, a file fills only the first rows."""

    blocks: nn.ModuleList
    """The repeated layers; each maps hidden states (rows, length, n_embd) to the same shape. The precision is chosen by
    timing one; a parallelism that shards a model wraps each."""

    def __init__(self, shape: Any, dropout: float = 0.0) -> None:
        """Initialise the weights with torch's generator."""
        super().__init__()
        self.shape = shape
        self.dropout = dropout

    @classmethod
    def shape_of(cls, keys: Any, vocab_size: int) -> Any:
        """The shape from a job's [model] section; if its vocab_size is 0, `vocab_size`, the token set's, is used."""
        shape = {field.name: getattr(keys, field.name) for field in dataclasses.fields(cls.shape_class)}
        return cls.shape_class(**{**shape, "vocab_size": keys.vocab_size or vocab_size})

    @property
    def masked(self) -> bool:
        """Whether the loss is of masked tokens only: so the model fills blanks and does not continue a text."""
        return self.targets_per_window() < int(self.shape.block_size)

    def windows(self, split: Any, separator: int) -> Windows:
        """How the tokens of a split, with `separator` between documents, are divided into windows. OrderError if there
        is none."""
        return StreamWindows(split, self.shape.block_size)

    def batch(self, windows: Tensor, seeds: Sequence[int]) -> tuple[Tensor, ...]:
        """The arguments of `forward` for windows, int64 (rows, width) on the CPU: inputs and the tokens after them.

        `seeds` has a number for each window, which depends on the job's seed, the step and the window's place in the
        step, not on the rank. A masked model draws its masks from them, so that they are the same for any number of
        ranks.
        """
        return windows[:, :-1], windows[:, 1:]

    def targets_per_window(self) -> int:
        """The number of tokens in a window of `block_size` that the loss sums over."""
        return int(self.shape.block_size)

    def targets(self, tokens: Sequence[int], seeds: Sequence[int]) -> int:
        """The number of targets in windows with so many tokens each, and these seeds."""
        return len(tokens) * self.targets_per_window()

    def forward(self, *batch: Tensor) -> Tensor:
        """Cross-entropy in nats, summed over all targets of the batch (scalar). A caller that accumulates, or has only
        a share of a batch, divides by the number of targets of the whole batch."""
        raise NotImplementedError

    def flops_per_token(self) -> float:
        """Floating-point operations of a training step, forward and backward, per token."""
        raise NotImplementedError

    def decays(self, name: str, parameter: Tensor) -> bool:
        """Whether weight decay applies to this parameter: to matrices, not to biases and norms."""
        return parameter.dim() >= 2

    def new_cache(self, rows: int) -> Any:
        """An empty cache for `logits`; None if the model has none and needs the whole context for each token."""
        return None

    def logits(self, inputs: Tensor, cache: Any = None) -> Tensor:
        """Scores (rows, vocab_size) of the token after `inputs`, int64 (rows, length). With a cache, `inputs` are the
        tokens that are not in it yet. NotImplementedError for a model that cannot continue a text."""
        raise NotImplementedError(f"{type(self).__name__} does not continue a text")

    def blank_logits(self, text: Sequence[int | None]) -> Tensor:
        """Scores (blanks, tokens) of the token set's tokens for each None in a text of at most `longest_text()` tokens.
        NotImplementedError unless `masked`."""
        raise NotImplementedError(f"{type(self).__name__} does not fill blanks")

    def longest_text(self) -> int:
        """Tokens of a text that fit into the context."""
        return int(self.shape.block_size)

    @classmethod
    def hugging_face(cls, name: str) -> tuple[str, bool]:
        """A parameter's name in Hugging Face's layout, without the prefix, and whether it is transposed there."""
        raise NotImplementedError(f"{cls.__name__} has no layout of Hugging Face's")

    @classmethod
    def hugging_face_config(cls, shape: Any) -> dict[str, Any]:
        """The config.json that goes with the weights."""
        raise NotImplementedError(f"{cls.__name__} has no layout of Hugging Face's")

    @classmethod
    def hugging_face_differs(cls, config: Mapping[str, Any], shape: Any) -> str:
        """What of a config.json is of another model than this shape's; empty: nothing. What it lacks is not compared,
        nor is the size of the vocabulary, which may be padded."""
        for name, value in cls.hugging_face_config(shape).items():
            if type(value) in (int, float, bool) and name != "vocab_size" and config.get(name, value) != value:
                return f"{name} = {json.dumps(config[name])}, the job's model has {json.dumps(value)}"
        return ""

    @classmethod
    def hugging_face_defaults(cls, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values, by our names, of parameters that Hugging Face's model has and ours may lack; written by an export."""
        return {}

    @classmethod
    def hugging_face_tokens(cls, tokens: Mapping[str, int], shape: Any) -> dict[str, int]:
        """The vocab.json that belongs to the weights: the token set's tokens in Hugging Face's spelling, with this
        model's numbers."""
        raise NotImplementedError(f"{cls.__name__} has no tokenizer of Hugging Face's")
