"""RoBERTa (arXiv:1907.11692): one file, read from top to bottom.

Token and position embeddings are added and normed. Then come `n_layer` blocks of attention in both directions and an
MLP, each with a residual connection and a norm after it. The model guesses the masked tokens of a window: only these
go through the output layer, a dense layer with a norm and the token embedding again, with a bias.

As published, 512 positions and 50,265 tokens, without the pooler, which masked language modelling does not use:
    base    12 layers, 12 heads,   768 wide    125 M
    large   24 layers, 16 heads, 1,024 wide    355 M

Tokens are numbered as Hugging Face's special ones are: <s> 0, <pad> 1, </s> 2, <unk> 3, then the token set's tokens in
their own order, three that are never used, and <mask> as the last. So a vocabulary of GPT-2's 50,257 makes 50,265.
Between 4 and the unused ones the published weights have another order, by frequency: an export writes a tokenizer with
this one, and weights that are read are put into it by the vocab.json beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.data import masking
from training.data.packing import EMPTY, END, PackedWindows
from training.keys import JobError
from training.models.base import Model
from training.models.cross_entropy import summed_cross_entropy
from training.models.linear import Linear

BEGIN, PAD, STOP, UNKNOWN, FIRST = range(5)
UNUSED = 3
ADDED = FIRST + UNUSED + 1
"""Tokens beside the token set's."""
SKIPPED = 2
"""Rows of the position embedding that are not used; Hugging Face's and fairseq's count from the row after <pad>'s."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a RoBERTa. `block_size` includes <s>, `vocab_size` the ADDED tokens."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int


class WindowDropout:
    """Dropout that depends only on the window and the place in the model, so that it is the same for any number of
    ranks and any micro batch: torch's own draws for the whole batch from one generator of the rank."""

    def __init__(self, seeds: Tensor, probability: float, device: torch.device) -> None:
        """`seeds`: int64, one for each window. Each has a generator, from which the model's layers draw in turn."""
        self.probability = probability
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds.tolist()]

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled graph cannot have generators
    def __call__(self, x: Tensor) -> Tensor:
        """Drop values of x (rows, ...), a row for each window."""
        kept = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        for row, generator in zip(kept, self.generators, strict=True):
            row.bernoulli_(1 - self.probability, generator=generator)
        return (x * kept).div_(1 - self.probability)


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_head = shape.n_head
        self.query = Linear(shape.n_embd, shape.n_embd)
        self.key = Linear(shape.n_embd, shape.n_embd)
        self.value = Linear(shape.n_embd, shape.n_embd)
        self.out = Linear(shape.n_embd, shape.n_embd)

    def forward(self, x: Tensor, is_token: Tensor | None, dropout: WindowDropout | None) -> Tensor:
        """x (rows, length, n_embd) -> the same shape; each position sees all where `is_token` is True (None:
        everywhere). With dropout the attention weights are computed here, their softmax in fp32, as `dropout` draws for
        each window."""
        rows, length, width = x.shape
        split = (rows, length, self.n_head, width // self.n_head)
        q, k, v = (part(x).view(split).transpose(1, 2) for part in (self.query, self.key, self.value))
        if dropout is None:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=is_token)
        else:
            scores = (q * split[-1] ** -0.5) @ k.transpose(2, 3)
            if is_token is not None:
                scores = scores.masked_fill(~is_token, -torch.inf)
            y = dropout(scores.softmax(3, dtype=torch.float32).to(v.dtype)) @ v
        projected: Tensor = self.out(y.transpose(1, 2).reshape(rows, length, width))
        return projected


class _MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = Linear(shape.n_embd, 4 * shape.n_embd)
        self.down = Linear(4 * shape.n_embd, shape.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., n_embd) -> the same shape, with the exact GELU (arXiv:1606.08415)."""
        down: Tensor = self.down(functional.gelu(self.up(x)))
        return down


class Block(nn.Module):
    """A layer: attention and then the MLP, each with its input added to its output and a LayerNorm after that."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = _Attention(shape)
        self.norm_1 = nn.LayerNorm(shape.n_embd)
        self.mlp = _MLP(shape)
        self.norm_2 = nn.LayerNorm(shape.n_embd)

    def forward(self, x: Tensor, is_token: Tensor | None = None, dropout: WindowDropout | None = None) -> Tensor:
        """`is_token` is False where a window is empty: bool, broadcast to (rows, heads, length, length)."""
        y = self.attention(x, is_token, dropout)
        x = self.norm_1(x + (y if dropout is None else dropout(y)))
        y = self.mlp(x)
        normed: Tensor = self.norm_2(x + (y if dropout is None else dropout(y)))
        return normed


class Roberta(Model):
    """A RoBERTa. Weights begin normal with a deviation of 0.02; biases, <pad> and the unused positions at 0."""

    shape_class = Shape
    hugging_face_tokenizer = "RobertaTokenizer"
    vocabulary_parameters = frozenset({"tokens.weight", "out_bias"})

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout)
        self.tokens = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.positions = nn.Embedding(SKIPPED + shape.block_size, shape.n_embd)
        self.norm = nn.LayerNorm(shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.out_dense = Linear(shape.n_embd, shape.n_embd)
        self.out_norm = nn.LayerNorm(shape.n_embd)
        self.out_bias = nn.Parameter(torch.zeros(shape.vocab_size))
        self.apply(self._initialise)
        # Hugging Face's layout has one type of tokens. RoBERTa as published has none: zero, and not trained.
        self.types = nn.Parameter(torch.zeros(1, shape.n_embd), requires_grad=False)
        with torch.no_grad():
            self.tokens.weight[PAD] = 0.0
            self.positions.weight[:SKIPPED] = 0.0

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    @classmethod
    def shape_of(cls, keys: Any, vocab_size: int) -> Shape:
        """The shape; if model.vocab_size is 0, the vocabulary is the token set's and the ADDED tokens."""
        least = vocab_size + FIRST + 1
        if 0 < keys.vocab_size < least:
            raise JobError(
                f"model.vocab_size = {keys.vocab_size}: {vocab_size} tokens of the token set and 5 special ones;"
                f" allowed: 0 or at least {least}"
            )
        shape: Shape = super().shape_of(keys, vocab_size + ADDED)
        return shape

    def windows(self, split: Any, separator: int) -> PackedWindows:
        return PackedWindows(split, separator, self.shape.block_size - 1)  # one place is for <s>

    def batch(self, windows: Tensor, seeds: Sequence[int]) -> tuple[Tensor, ...]:
        """Inputs with masks (rows, length), the windows' seeds for the dropout, and of all rows together the places of
        the targets in the flattened inputs and the targets (targets)."""
        tokens = np.pad(windows.numpy() + FIRST, ((0, 0), (1, 0)), constant_values=BEGIN)
        tokens[tokens == EMPTY + FIRST] = PAD  # before END, which becomes what EMPTY was
        tokens[tokens == END + FIRST] = STOP
        is_text, size = tokens >= FIRST, self.shape.vocab_size
        made = masking.masked(tokens, is_text, np.array(seeds, dtype=np.uint64), size - 1, FIRST, size - 1)
        own = torch.tensor([seed >> 1 for seed in seeds])
        return (torch.from_numpy(made.inputs), own, torch.from_numpy(made.places), torch.from_numpy(made.targets))

    def targets_per_window(self) -> int:
        """Of a full window, on average; `targets` has the number."""
        return max(1, round(masking.SHARE * (self.shape.block_size - 1)))

    def targets(self, tokens: Sequence[int], seeds: Sequence[int]) -> int:
        return int(masking.counts(np.asarray(tokens), np.array(seeds, dtype=np.uint64)).sum())

    # What has one shape is compiled, `hidden`; each batch has another number of targets.
    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
    def forward(self, inputs: Tensor, seeds: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        """The arguments are what `batch` returns; `seeds` is used in training with dropout only."""
        dropout = self._dropout(seeds, inputs.device) if self.training and self.dropout else None
        return self._loss(self.hidden(inputs, dropout), places, targets)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _dropout(self, seeds: Tensor, device: torch.device) -> WindowDropout:
        return WindowDropout(seeds, self.dropout, device)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _loss(self, hidden: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        features = self._features(hidden.flatten(0, 1)[places])
        return summed_cross_entropy(features, self.tokens.weight, targets, self.out_bias)

    def _features(self, hidden: Tensor) -> Tensor:
        features: Tensor = self.out_norm(functional.gelu(self.out_dense(hidden)))
        return features

    def hidden(self, inputs: Tensor, dropout: WindowDropout | None = None) -> Tensor:
        """The last block's output (rows, length, n_embd) for tokens (rows, length) of this model's numbering."""
        positions = self.positions.weight[SKIPPED : SKIPPED + inputs.size(1)]
        x = self.norm(self.tokens(inputs) + positions + self.types)
        x = x if dropout is None else dropout(x)
        is_token = (inputs != PAD)[:, None, None, :]
        for block in self.blocks:
            x = block(x, is_token, dropout)
        return x

    def scores(self, inputs: Tensor) -> Tensor:
        """Scores of all tokens at all places: (rows, length, vocab_size)."""
        return functional.linear(self._features(self.hidden(inputs)), self.tokens.weight, self.out_bias)

    def blank_logits(self, text: Sequence[int | None]) -> Tensor:
        mask = self.shape.vocab_size - 1
        inputs = [BEGIN, *(mask if token is None else token + FIRST for token in text), STOP]
        blanks = [place for place, token in enumerate(text, 1) if token is None]
        return self.scores(torch.tensor([inputs], device=self.out_bias.device))[0, blanks, FIRST:mask]

    def longest_text(self) -> int:
        return int(self.shape.block_size) - 2

    def flops_per_token(self) -> float:
        """2 forward and 4 backward for each weight of a matmul, plus attention's two products with every position; of
        the output layer only for the masked tokens."""
        blocks, shape = sum(p.numel() for p in self.blocks.parameters()), self.shape
        out = self.out_dense.weight.numel() + self.tokens.weight.numel()
        return 6.0 * (blocks + masking.SHARE * out) + 12 * shape.n_layer * shape.n_embd * shape.block_size

    @classmethod
    def hugging_face(cls, name: str) -> tuple[str, bool]:
        if name in _OUTSIDE_BLOCKS:
            return _OUTSIDE_BLOCKS[name], False
        _, layer, rest = name.split(".", 2)
        part, _, kind = rest.rpartition(".")
        return f"roberta.encoder.layer.{layer}.{_IN_A_BLOCK[part]}.{kind}", False

    @classmethod
    def hugging_face_config(cls, shape: Shape) -> dict[str, Any]:
        return {
            "architectures": ["RobertaForMaskedLM"],
            "model_type": "roberta",
            "num_hidden_layers": shape.n_layer,
            "num_attention_heads": shape.n_head,
            "hidden_size": shape.n_embd,
            "intermediate_size": 4 * shape.n_embd,
            "max_position_embeddings": SKIPPED + shape.block_size,
            "vocab_size": shape.vocab_size,
            "type_vocab_size": 1,
            "bos_token_id": BEGIN,
            "pad_token_id": PAD,
            "eos_token_id": STOP,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        }

    @classmethod
    def hugging_face_tokens(cls, tokens: Mapping[str, int], shape: Shape) -> dict[str, int]:
        known = {token: FIRST + number for token, number in tokens.items()}
        known |= {"<s>": BEGIN, "<pad>": PAD, "</s>": STOP, "<unk>": UNKNOWN, "<mask>": shape.vocab_size - 1}
        unused = sorted(set(range(shape.vocab_size)) - set(known.values()))
        return known | {f"madeupword{number:04}": token for number, token in enumerate(unused)}  # as published


_OUTSIDE_BLOCKS = {
    "tokens.weight": "roberta.embeddings.word_embeddings.weight",
    "positions.weight": "roberta.embeddings.position_embeddings.weight",
    "types": "roberta.embeddings.token_type_embeddings.weight",
    "norm.weight": "roberta.embeddings.LayerNorm.weight",
    "norm.bias": "roberta.embeddings.LayerNorm.bias",
    "out_dense.weight": "lm_head.dense.weight",
    "out_dense.bias": "lm_head.dense.bias",
    **{f"out_norm.{kind}": f"lm_head.layer_norm.{kind}" for kind in ("weight", "bias")},
    "out_bias": "lm_head.bias",
}
_IN_A_BLOCK = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "norm_1": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "norm_2": "output.LayerNorm",
}
"""Our names -> Hugging Face's."""
