"""GPT-2: one file, read from top to bottom.

Token and position embeddings are added. Then come `n_layer` blocks of attention and an MLP, each with a norm before it
and a residual connection around it, a last norm, and the token embedding again as the output layer.

124M, as published: 12 layers, 12 heads, 768 wide, 1,024 positions, 50,257 tokens:
    embeddings  50,257 * 768 + 1,024 * 768            39.4 M
    a block     12 * 768^2 + 13 * 768 = 7.09 M, * 12  85.1 M
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.models.base import Model
from training.models.cache import Cache
from training.models.cross_entropy import summed_cross_entropy
from training.models.linear import Linear


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a GPT-2; `vocab_size` may be padded beyond the token set's."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    bias: bool = True


class Attention(nn.Module):
    """Causal self-attention with all heads' queries, keys and values from one linear layer."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.n_head = shape.n_head
        self.dropout = dropout
        self.qkv = Linear(shape.n_embd, 3 * shape.n_embd, bias=shape.bias)
        self.out = Linear(shape.n_embd, shape.n_embd, bias=shape.bias)

    def forward(self, x: Tensor, layer: int, cache: Cache | None) -> Tensor:
        """x (rows, length, n_embd) -> the same shape. Each position sees itself and those before it. With a cache, x is
        of the positions after the cached ones: their keys and values are put into it as layer `layer`'s, and x sees all
        of them."""
        rows, length, width = x.shape
        heads = self.qkv(x).view(rows, length, 3, self.n_head, width // self.n_head)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (rows, heads, length, width of a head)
        mask = None
        if cache is not None:
            k, v = cache.extend(layer, k, v)
            mask = cache.mask(length)
        causal = length > 1 and mask is None
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, dropout_p=self.dropout if self.training else 0.0
        )
        y = self.out(y.transpose(1, 2).reshape(rows, length, width))
        return functional.dropout(y, self.dropout, self.training)


class MLP(nn.Module):
    """Two linear layers, 4 n_embd wide between them, with GELU (arXiv:1606.08415) in its tanh form, as in the published
    model."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.up = Linear(shape.n_embd, 4 * shape.n_embd, bias=shape.bias)
        self.down = Linear(4 * shape.n_embd, shape.n_embd, bias=shape.bias)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """x (..., n_embd) -> the same shape."""
        x = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return functional.dropout(x, self.dropout, self.training)


class Block(nn.Module):
    """A layer: attention and then the MLP, each with a LayerNorm before it, and its input added to its output."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.n_embd, bias=shape.bias)
        self.attention = Attention(shape, dropout)
        self.norm_2 = nn.LayerNorm(shape.n_embd, bias=shape.bias)
        self.mlp = MLP(shape, dropout)

    def forward(self, x: Tensor, layer: int = 0, cache: Cache | None = None) -> Tensor:
        """x (rows, length, n_embd) -> the same shape; `layer` and `cache` as for `Attention.forward`."""
        x = x + self.attention(self.norm_1(x), layer, cache)
        return x + self.mlp(self.norm_2(x))


class GPT(Model):
    """GPT-2 (Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"). Weights begin normal with a
    deviation of 0.02 and biases at 0; the layers that add to the residual stream begin with 0.02 / sqrt(2 n_layer), as
    in the paper."""

    shape_class = Shape
    hugging_face_prefix = "transformer."
    vocabulary_parameters = frozenset({"tokens.weight"})

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout)
        self.tokens = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.positions = nn.Embedding(shape.block_size, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.n_layer))
        self.norm = nn.LayerNorm(shape.n_embd, bias=shape.bias)
        self.apply(self._initialise)
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):  # each block adds to the residual stream twice
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.n_layer))

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return summed_cross_entropy(self.hidden(inputs).flatten(0, 1), self.tokens.weight, targets.flatten())

    def new_cache(self, rows: int) -> Cache:
        shape = self.shape
        width = shape.n_embd // shape.n_head
        return Cache(shape.n_layer, rows, shape.n_head, shape.block_size, width, self.tokens.weight)

    def logits(self, inputs: Tensor, cache: Cache | None = None) -> Tensor:
        return functional.linear(self.hidden(inputs, cache)[:, -1], self.tokens.weight)

    def hidden(self, inputs: Tensor, cache: Cache | None = None) -> Tensor:
        """The last norm's output (rows, length, n_embd) for tokens (rows, length)."""
        first = 0 if cache is None else cache.length
        positions = torch.arange(first, first + inputs.size(1), device=inputs.device)
        x = functional.dropout(self.tokens(inputs) + self.positions(positions), self.dropout, self.training)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, cache)
        if cache is not None:
            cache.length += inputs.size(1)
        return self.norm(x)

    def flops_per_token(self) -> float:
        """2 forward and 4 backward for each weight of a matmul, plus attention's two products with every position of
        the context; the masked half is counted too, as is usual."""
        multiplied = sum(p.numel() for p in self.parameters()) - self.positions.weight.numel()
        return 6.0 * int(multiplied) + 12 * self.shape.n_layer * self.shape.n_embd * self.shape.block_size

    @classmethod
    def hugging_face(cls, name: str) -> tuple[str, bool]:
        """Hugging Face's GPT-2 uses Conv1D for its linear layers, so their weights are transposed."""
        if name in _OUTSIDE_BLOCKS:
            return _OUTSIDE_BLOCKS[name], False
        _, layer, rest = name.split(".", 2)
        part, _, kind = rest.rpartition(".")
        is_linear = kind == "weight" and not part.startswith("norm")
        return f"h.{layer}.{_IN_A_BLOCK[part]}.{kind}", is_linear

    @classmethod
    def hugging_face_config(cls, shape: Shape) -> dict[str, Any]:
        """Fits `GPT2LMHeadModel`, which always has biases: see `hugging_face_defaults`."""
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_layer": shape.n_layer,
            "n_head": shape.n_head,
            "n_embd": shape.n_embd,
            "n_positions": shape.block_size,
            "n_ctx": shape.block_size,
            "vocab_size": shape.vocab_size,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        }

    @classmethod
    def hugging_face_defaults(cls, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Zeros for the biases that our model lacks."""
        weights = (name for name in parameters if name.endswith(".weight") and name not in _EMBEDDINGS)
        biases = {name.removesuffix("weight") + "bias": torch.zeros(parameters[name].size(0)) for name in weights}
        return {name: zeros for name, zeros in biases.items() if name not in parameters}


_EMBEDDINGS = {"tokens.weight", "positions.weight"}
_OUTSIDE_BLOCKS = {
    "tokens.weight": "wte.weight",
    "positions.weight": "wpe.weight",
    "norm.weight": "ln_f.weight",
    "norm.bias": "ln_f.bias",
}
_IN_A_BLOCK = {
    "norm_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm_2": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
"""Our names -> Hugging Face's."""
