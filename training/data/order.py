"""The order of the data: which windows a step trains on, computed from the seed and the step.

The tokens of a split are cut into windows of `block` tokens; each is read with the next token, the target of its last
one. An epoch reads every window once, in an order of its own. The order does not depend on the ranks: a step has one
list of windows, and each rank trains on a contiguous share of it. So any number of ranks trains on the same data in the
same order, and a resumed run needs only the step.

The order is a permutation that is computed, not stored: a Feistel network over the numbers below the smallest square
that holds all windows, applied until the result is a window. A batch costs the same in a set of any size.

An epoch leaves out a remainder shorter than a window. Each epoch starts at another offset within that remainder.
"""

from __future__ import annotations

import hashlib
from math import isqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

ROUNDS = 10  # with 6, neighbours stayed together more often than by chance (16 to 400 windows); with 8 they did not
GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


class OrderError(ValueError):
    """A split without a window, or a batch without one; the message is one line for the user."""


def windows(tokens: int, block: int) -> int:
    """Number of windows of an epoch; OrderError if there is none."""
    count = (tokens - 1) // block if block > 0 else 0
    if count < 1:
        raise OrderError(f"{tokens} tokens hold no window of {block} and the token after it")
    return count


def batch_windows(tokens: int, block: int, global_batch: int, seed: int, step: int) -> Array:
    """Where the windows of a step (counted from 0) begin: `global_batch` offsets into the split, int64. OrderError."""
    count = windows(tokens, block)
    epoch, index = epochs(count, global_batch, step)
    key = epoch_keys(epoch, seed)
    remainder = (tokens - 1) % block
    shift = (mixed(key ^ np.uint64(GOLDEN)) % np.uint64(remainder + 1)).astype(np.int64)
    return permuted(index.astype(np.uint64), count, key).astype(np.int64) * block + shift


def epochs(count: int, global_batch: int, step: int) -> tuple[Array, Array]:
    """For each window of a step (counted from 0) its epoch of `count` windows and its place in that. OrderError."""
    if global_batch < 1 or step < 0:
        raise OrderError(f"a batch of {global_batch} windows at step {step}: a batch has at least 1, steps begin at 0")
    first = step * global_batch
    if first + global_batch > 2**63 - 1:
        raise OrderError(f"step {step} of {global_batch} windows is beyond 2^63 windows")
    epoch, index = np.divmod(np.arange(first, first + global_batch, dtype=np.int64), count)
    return epoch, index


def epoch_keys(epoch: Array, seed: int) -> Array:
    """The key of the order of each epoch, uint64."""
    return mixed(epoch.astype(np.uint64) ^ np.uint64(folded(seed)))


def window_seeds(seed: int, step: int, first: int, count: int) -> list[int]:
    """A 64-bit number for each of `count` windows of a step, from its window `first` on; the same on every rank."""
    key = mixed(np.array([folded(seed) ^ step], dtype=np.uint64))
    return list(mixed(key ^ mixed(np.arange(first, first + count, dtype=np.uint64))).tolist())


def evaluation_windows(tokens: int, block: int, count: int) -> Array:
    """Offsets, int64, of at most `count` windows that do not overlap, spread evenly over the split: always the same."""
    total = windows(tokens, block)
    count = min(count, total)
    return np.arange(count, dtype=np.int64) * total // count * block


def crops(split: Array, starts: Array, block: int) -> Array:
    """The tokens of the windows that begin at `starts`, each with the next token: int64 (windows, block + 1)."""
    tokens: Array = np.empty((len(starts), block + 1), dtype=np.int64)
    for row, start in zip(tokens, starts.tolist(), strict=True):
        row[:] = split[start : start + block + 1]
    return tokens


def permuted(index: Array, count: int, key: Array) -> Array:
    """The window at each index of its epoch's order. `index` (below `count`) and `key` (the epoch's) are uint64."""
    side = np.uint64(isqrt(count - 1) + 1)  # the smallest number whose square is at least `count`, exactly
    place = feistel(index, side, key)
    outside = np.flatnonzero(place >= count)
    while len(outside):  # about 2/sqrt(count) of them, each time
        place[outside] = feistel(place[outside], side, key[outside])
        outside = outside[place[outside] >= count]
    return place


def feistel(value: Array, side: np.uint64, key: Array) -> Array:
    """A permutation of the numbers below side * side, chosen by `key`."""
    left, right = np.divmod(value, side)
    for number in range(1, ROUNDS + 1):
        turn = np.uint64(number * GOLDEN & MASK)
        left, right = right, (left + mixed(right + (key ^ turn)) % side) % side
    return left * side + right


def mixed(value: Array) -> Array:
    """splitmix64: every bit of the result depends on every bit of the value."""
    value = value + np.uint64(GOLDEN)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def folded(seed: int) -> int:
    """Any whole number hashed to 64 bits, so that neighbouring seeds give unrelated orders."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "little")
