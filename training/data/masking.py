"""Which tokens of a window are masked, and by what: BERT's rule, as RoBERTa has it.

15 % of the text are chosen. Of those 80 % become <mask>, 10 % a random token and 10 % stay: the model must guess all of
them. All is drawn from the window's seed, which depends on the job's seed, the step and the place in the step: so each
epoch has masks of its own, and any number of ranks has the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from training.data.order import mixed

Array: TypeAlias = npt.NDArray[Any]

SHARE = 0.15
MASK, RANDOM = 0.8, 0.1
"""Of the chosen tokens: the shares that become <mask>, and a random token."""
_COUNT, _PLACES, _FATES, _TOKENS = range(4)
"""What is drawn; each has random numbers of its own."""


class Masked(NamedTuple):
    """Windows with some tokens masked, and what the model has to guess."""

    inputs: Array  # int64 (rows, length)
    places: Array  # int64 (targets): of the chosen tokens in the flattened inputs, ascending
    targets: Array  # int64 (targets): what was there


def counts(tokens: Array, seeds: Array) -> Array:
    """How many tokens are chosen in windows with so many of them: SHARE, rounded up or down at random so that it is the
    mean, but at least one. `seeds`: uint64, one for each window."""
    return np.maximum(1, np.floor(SHARE * tokens + _uniform(seeds, _COUNT, 1)[:, 0]).astype(np.int64))


def masked(inputs: Array, is_text: Array, seeds: Array, mask: int, first: int, last: int) -> Masked:
    """Mask text in windows of tokens, int64 (rows, length). `is_text` (rows, length) is where a token may be chosen, in
    each row at least one; random tokens are from `first` up to, but not including, `last`."""
    length = inputs.shape[1]
    number = counts(is_text.sum(axis=1), seeds)
    rank = np.where(is_text, _uniform(seeds, _PLACES, length), 2.0).argsort(axis=1, kind="stable").argsort(axis=1)
    chosen = rank < number[:, None]
    fate = _uniform(seeds, _FATES, length)
    random = first + (_uniform(seeds, _TOKENS, length) * (last - first)).astype(np.int64)
    shown = np.where(chosen & (fate < MASK), mask, inputs)
    shown = np.where(chosen & (fate >= MASK) & (fate < MASK + RANDOM), random, shown)
    places = np.flatnonzero(chosen)
    return Masked(shown, places, inputs.reshape(-1)[places])


def _uniform(seeds: Array, what: int, length: int) -> Array:
    """Numbers in [0, 1) that depend on the seed, on what they are for and on the place: (seeds, length)."""
    place = mixed(np.arange(length, dtype=np.uint64) * np.uint64(4) + np.uint64(what))
    uniform: Array = (mixed(seeds[:, None] ^ place) >> np.uint64(11)) * 2.0**-53
    return uniform
