"""How many parameters a model has, by arithmetic from its shape: known without torch, before a job starts.

tests/training/test_counts.py compares it with the models themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Counts(NamedTuple):
    """The number of values in a model's parameters."""

    parameters: int
    trained: int
    in_matrices: int
    """Of the trained ones those in the matrices of its blocks, which Muon trains."""


def counts(architecture: str, shape: Any) -> Counts:
    """Of a model by its name in ARCHITECTURES. `shape` has the fields of the model's Shape, or is a job's [model]
    section with a vocab_size above 0; for roberta this has the special tokens, too."""
    return KNOWN[architecture](shape)


def intermediate_size(n_embd: int) -> int:
    """The width inside the MLP by Llama's rule: two thirds of 4 n_embd, rounded up to a multiple of 256. It is that of
    7B and 13B; 70B has more."""
    return -(-(8 * n_embd // 3) // 256) * 256


def _gpt2(shape: Any) -> Counts:
    width, biased = shape.n_embd, bool(shape.bias)
    matrices = 12 * width * width  # queries, keys, values and the way out: 4; the MLP's two layers: 4 each
    block = matrices + biased * 9 * width + 2 * (1 + biased) * width  # biases of 3 + 1 + 4 + 1 widths; two norms
    every = (shape.vocab_size + shape.block_size) * width + shape.n_layer * block + (1 + biased) * width
    return Counts(every, every, shape.n_layer * matrices)


def _llama(shape: Any) -> Counts:
    width = shape.n_embd
    keys = width // shape.n_head * (shape.n_kv_head or shape.n_head)
    inside = shape.intermediate_size or intermediate_size(width)
    matrices = width * (2 * width + 2 * keys + 3 * inside)
    vocabulary = (1 if shape.tie else 2) * shape.vocab_size * width
    every = vocabulary + shape.n_layer * (matrices + 2 * width) + width
    return Counts(every, every, shape.n_layer * matrices)


def _roberta(shape: Any) -> Counts:
    width = shape.n_embd
    matrices = 12 * width * width
    block = matrices + 9 * width + 4 * width
    embedded = (shape.vocab_size + 2 + shape.block_size) * width + 2 * width  # two positions that are skipped; a norm
    head = width * width + width + 2 * width + shape.vocab_size  # a layer, a norm, and a bias for each token
    trained = embedded + shape.n_layer * block + head
    return Counts(trained + width, trained, shape.n_layer * matrices)  # the type of tokens, which is not trained


KNOWN: dict[str, Callable[[Any], Counts]] = {"gpt2": _gpt2, "llama": _llama, "roberta": _roberta}
