"""Llama (arXiv:2302.13971, arXiv:2307.09288): one file, read from top to bottom.

Token embeddings, then `n_layer` blocks of attention and an MLP, each with an RMSNorm before it and a residual
connection around it, a last norm, and an output layer of its own or, tied, the token embedding again. Positions are
rotations of the queries and keys (arXiv:2104.09864). Several heads may share their keys and values (arXiv:2305.13245).
No biases, no dropout. A rotation turns the first half of a head's width against the second, as Hugging Face's weights
have it (Meta's own files turn neighbours).

Llama 2 as published: 4,096 positions, 32,000 tokens, an output layer of its own:
    7B     32 layers, 32 heads, 32 of keys, 4,096 wide, 11,008 inside the MLP     6,738,415,616 parameters
    13B    40 layers, 40 heads, 40 of keys, 5,120 wide, 13,824                   13,015,864,320
    70B    80 layers, 64 heads,  8 of keys, 8,192 wide, 28,672                   68,976,648,192

Every module with weights has `reset_parameters`, which its constructor calls: a model that was built on the meta device
gets the same initial weights by calling it for each of `modules()` in order. There are no buffers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.models.base import Model
from training.models.cache import Cache
from training.models.counts import intermediate_size
from training.models.cross_entropy import summed_cross_entropy
from training.models.elementwise import rms_norm, turn
from training.models.linear import Linear


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a Llama. Unlike in a job's [model] section no field is 0, see `Llama.shape_of`."""

    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    intermediate_size: int
    block_size: int
    vocab_size: int
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5
    tie: bool = False

    @property
    def head_width(self) -> int:
        """Of queries, keys and values alike: n_head of them are n_embd."""
        return self.n_embd // self.n_head


class Rotation:
    """Turns queries and keys by angles that grow with their positions, in fp32.

    An object and not a pair of tensors, so that what wraps a block (FSDP's mixed precision) does not round its angles.
    """

    def __init__(self, shape: Shape, first: int, length: int, device: torch.device) -> None:
        """For the positions from `first` to `first + length`."""
        with torch.autocast(device.type, enabled=False):
            halves = torch.arange(0, shape.head_width, 2, dtype=torch.float32, device=device)
            positions = torch.arange(first, first + length, dtype=torch.float32, device=device)
            angles = torch.outer(positions, 1.0 / shape.rope_base ** (halves / shape.head_width))
            self.cos, self.sin = angles.cos()[:, None, :], angles.sin()[:, None, :]

    def __call__(self, x: Tensor) -> Tensor:
        """Turned x (rows, length, heads, width of a head), in its precision."""
        return turn(x, self.cos, self.sin)


class _Linear(Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)  # as transformers' initializer_range


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class _RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) -> the same shape; for its type see `rms_norm`."""
        return rms_norm(x, self.weight, self.epsilon)


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.head_width = shape.n_head, shape.n_kv_head, shape.head_width
        self.query = _Linear(shape.n_embd, shape.n_embd)
        self.key = _Linear(shape.n_embd, shape.n_kv_head * shape.head_width)
        self.value = _Linear(shape.n_embd, shape.n_kv_head * shape.head_width)
        self.out = _Linear(shape.n_embd, shape.n_embd)

    def forward(self, x: Tensor, rotation: Rotation, layer: int, cache: Cache | None) -> Tensor:
        """Causal: x (rows, length, n_embd) -> the same shape. `rotation` is of x's positions. With a cache, these come
        after the cached ones, and their keys and values are put into it as layer `layer`'s."""
        rows, length, width = x.shape
        q = rotation(self.query(x).view(rows, length, self.n_head, self.head_width)).transpose(1, 2)
        k = rotation(self.key(x).view(rows, length, self.n_kv_head, self.head_width)).transpose(1, 2)
        v = self.value(x).view(rows, length, self.n_kv_head, self.head_width).transpose(1, 2)
        mask = None
        if cache is not None:
            k, v = cache.extend(layer, k, v)
            mask = cache.mask(length)
        causal = length > 1 and mask is None
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=self.n_kv_head < self.n_head
        )
        projected: Tensor = self.out(y.transpose(1, 2).reshape(rows, length, width))
        return projected


class _MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = _Linear(shape.n_embd, shape.intermediate_size)
        self.up = _Linear(shape.n_embd, shape.intermediate_size)
        self.down = _Linear(shape.intermediate_size, shape.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., n_embd) -> the same shape: SwiGLU (arXiv:2002.05202) without biases."""
        down: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return down


class Block(nn.Module):
    """A layer: attention and then the MLP, each with an RMSNorm before it, and its input added to its output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm_1 = _RMSNorm(shape.n_embd, shape.norm_epsilon)
        self.attention = _Attention(shape)
        self.norm_2 = _RMSNorm(shape.n_embd, shape.norm_epsilon)
        self.mlp = _MLP(shape)

    def forward(
        self, x: Tensor, rotation: Rotation | None = None, layer: int = 0, cache: Cache | None = None
    ) -> Tensor:
        """Without a rotation, for positions from 0."""
        rotation = rotation or Rotation(self.shape, 0, x.size(1), x.device)
        x = x + self.attention(self.norm_1(x), rotation, layer, cache)
        return x + self.mlp(self.norm_2(x))


class Llama(Model):
    """A Llama. Weights begin normal with a deviation of 0.02, as transformers' do, and those of the norms at 1."""

    shape_class = Shape
    hugging_face_prefix = ""
    vocabulary_parameters = frozenset({"tokens.weight", "out.weight"})

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        """`dropout` is that of the interface; a job whose model is llama has none (training/job.py)."""
        super().__init__(shape, dropout)
        self.tokens = _Embedding(shape.vocab_size, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.norm = _RMSNorm(shape.n_embd, shape.norm_epsilon)
        self.out = None if shape.tie else _Linear(shape.n_embd, shape.vocab_size)

    @classmethod
    def shape_of(cls, keys: Any, vocab_size: int) -> Shape:
        """The shape; heads of keys and the MLP's width that are 0 become as many as heads, and Llama's rule."""
        return Shape(
            n_layer=keys.n_layer,
            n_head=keys.n_head,
            n_kv_head=keys.n_kv_head or keys.n_head,
            n_embd=keys.n_embd,
            intermediate_size=keys.intermediate_size or intermediate_size(keys.n_embd),
            block_size=keys.block_size,
            vocab_size=keys.vocab_size or vocab_size,
            rope_base=keys.rope_base,
            norm_epsilon=keys.norm_epsilon,
            tie=keys.tie,
        )

    @property
    def out_weight(self) -> Tensor:
        """The output layer's weight (vocab_size, n_embd)."""
        return self.tokens.weight if self.out is None else self.out.weight

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return summed_cross_entropy(self.hidden(inputs).flatten(0, 1), self.out_weight, targets.flatten())

    def new_cache(self, rows: int) -> Cache:
        """Only the heads of keys are kept, so the cache shrinks with `n_kv_head`."""
        shape = self.shape
        return Cache(shape.n_layer, rows, shape.n_kv_head, shape.block_size, shape.head_width, self.tokens.weight)

    def logits(self, inputs: Tensor, cache: Cache | None = None) -> Tensor:
        return functional.linear(self.hidden(inputs, cache)[:, -1], self.out_weight)

    def hidden(self, inputs: Tensor, cache: Cache | None = None) -> Tensor:
        """The last norm's output (rows, length, n_embd) for tokens (rows, length)."""
        first = 0 if cache is None else cache.length
        rotation = Rotation(self.shape, first, inputs.size(1), inputs.device)
        x = self.tokens(inputs)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, layer, cache)
        if cache is not None:
            cache.length += inputs.size(1)
        normed: Tensor = self.norm(x)
        return normed

    def flops_per_token(self) -> float:
        """2 forward and 4 backward for each weight of a matmul, plus attention's two products with every position of
        the context, 12 n_layer n_embd block_size (PaLM, arXiv:2204.02311, appendix B); the masked half is counted too,
        as is usual. Looking a token up in the embedding costs nothing; its product as the tied output does."""
        shape = self.shape
        keys = shape.n_kv_head * shape.head_width
        block = shape.n_embd * (2 * shape.n_embd + 2 * keys + 3 * shape.intermediate_size)
        multiplied = shape.n_layer * block + shape.vocab_size * shape.n_embd
        return 6.0 * multiplied + 12.0 * shape.n_layer * shape.n_embd * shape.block_size

    @classmethod
    def hugging_face(cls, name: str) -> tuple[str, bool]:
        if name in _OUTSIDE_BLOCKS:
            return _OUTSIDE_BLOCKS[name], False
        _, layer, rest = name.split(".", 2)
        return f"model.layers.{layer}.{_IN_A_BLOCK[rest.removesuffix('.weight')]}.weight", False

    @classmethod
    def hugging_face_config(cls, shape: Shape) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": shape.n_layer,
            "num_attention_heads": shape.n_head,
            "num_key_value_heads": shape.n_kv_head,
            "head_dim": shape.head_width,
            "hidden_size": shape.n_embd,
            "intermediate_size": shape.intermediate_size,
            "max_position_embeddings": shape.block_size,
            "vocab_size": shape.vocab_size,
            "rope_theta": shape.rope_base,
            "rms_norm_eps": shape.norm_epsilon,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": shape.tie,
        }

    @classmethod
    def hugging_face_differs(cls, config: Mapping[str, Any], shape: Shape) -> str:
        """The positions may be fewer than the weights were trained with. Stretched rotations, as Llama 3.1 has them,
        and other activations are no part of this model. transformers 5 has the rotation in `rope_parameters`."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            return f'rotations of the kind {json.dumps(kind)}, the job\'s model has "default"'
        if config.get("model_type", "llama") != "llama" or config.get("hidden_act", "silu") != "silu":
            return f"a {config.get('model_type')} with {config.get('hidden_act')}, the job's model is a llama with silu"
        base = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
        heads = config.get("num_key_value_heads") or config.get("num_attention_heads", shape.n_kv_head)
        positions = config.get("max_position_embeddings", shape.block_size)
        known = {**config, "rope_theta": base, "num_key_value_heads": heads}
        if isinstance(positions, int) and positions > shape.block_size:
            known.pop("max_position_embeddings")
        return super().hugging_face_differs(known, shape)


_OUTSIDE_BLOCKS = {
    "tokens.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "out.weight": "lm_head.weight",
}
_IN_A_BLOCK = {
    "norm_1": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "norm_2": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
"""Our names -> Hugging Face's."""
