"""The order of the data: each window of an epoch once, from the seed and the step alone, at any size."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data import order
from training.data.order import OrderError, batch_windows, windows
from training.job import share

seeds = st.integers(-(2**70), 2**70)


def epoch_of(tokens: int, block: int, batch: int, seed: int, epoch: int) -> list[int]:
    """The starts of one epoch, put together from the steps that touch it."""
    count = windows(tokens, block)
    first, last = epoch * count, (epoch + 1) * count
    steps = range(first // batch, -(-last // batch))
    starts = np.concatenate([batch_windows(tokens, block, batch, seed, step) for step in steps])
    offset = first - steps[0] * batch
    return [int(start) for start in starts[offset : offset + count]]


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 400), st.integers(1, 50), seeds, st.integers(0, 1000))
def test_every_window_of_an_epoch_exactly_once(block: int, more: int, batch: int, seed: int, epoch: int) -> None:
    tokens = block + 1 + more
    starts = sorted(epoch_of(tokens, block, batch, seed, epoch))
    shift = starts[0]
    assert 0 <= shift <= (tokens - 1) % block
    assert starts == [shift + window * block for window in range(windows(tokens, block))]
    assert starts[-1] + block < tokens  # the target of the last token is there too


@settings(deadline=None)
@given(st.integers(2, 5000), seeds, st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_same_windows_whatever_the_number_of_ranks(tokens: int, seed: int, step: int, ranks: int) -> None:
    complete = batch_windows(tokens, 1, 12, seed, step)
    parts = [complete[slice(*share(12, rank, ranks))] for rank in range(ranks)]
    assert np.array_equal(complete, np.concatenate(parts))
    assert {len(part) for part in parts} == {12 // ranks}


@settings(deadline=None)
@given(st.integers(1000, 10**6), st.integers(1, 100), seeds, st.integers(0, 2**40))
def test_any_batch_size_walks_the_same_sequence(tokens: int, batch: int, seed: int, step: int) -> None:
    one = [int(batch_windows(tokens, 7, 1, seed, step * batch + i)[0]) for i in range(batch)]
    assert batch_windows(tokens, 7, batch, seed, step).tolist() == one


@settings(deadline=None)
@given(st.integers(500, 1000), seeds, st.integers(0, 1000))
def test_epochs_and_seeds_differ(count: int, seed: int, epoch: int) -> None:
    here = epoch_of(count + 1, 1, 64, seed, epoch)
    assert here != epoch_of(count + 1, 1, 64, seed, epoch + 1)
    assert here != epoch_of(count + 1, 1, 64, seed + 1, epoch)
    assert here != sorted(here)


def test_the_order_is_as_even_as_chance() -> None:
    """Where each window comes, over many epochs: chi-squared, with the windows in the middle of its distribution."""
    count, epochs = 64, 6000
    places = np.stack([epoch_of(count + 1, 1, count, 7, epoch) for epoch in range(epochs)])
    expected = epochs / count
    for column in (0, 1, 31, 63):
        seen = np.bincount(places[:, column], minlength=count)
        assert 25 < float(((seen - expected) ** 2 / expected).sum()) < 125  # 63 degrees of freedom: 63 +- 11
    after = np.bincount((places[:, 1:] - places[:, :-1]).ravel() % count, minlength=count)[1:]
    assert abs(after - epochs).max() < 5 * epochs**0.5  # neighbours are no nearer than others


def test_pinned() -> None:
    """A checkpoint of an earlier version must go on with the order that it began with."""
    assert batch_windows(1000, 8, 6, 1337, 0).tolist() == PINNED[0]
    assert batch_windows(10**13, 1024, 4, 1337, 10**6).tolist() == PINNED[1]


PINNED = [
    [722, 538, 218, 338, 898, 826],
    [890066911938, 2244985701058, 6937266862786, 8228959315650],
]


def test_a_huge_set_costs_what_a_small_one_does() -> None:
    huge = 1024 * 10**10 + 1

    def seconds(tokens: int) -> float:
        began = time.perf_counter()
        for step in range(20):
            batch_windows(tokens, 1024, 512, 1, step * 1000)
        return time.perf_counter() - began

    small, large = (min(seconds(tokens) for _ in range(5)) for tokens in (1024 * 10**4 + 1, huge))
    assert large < 5 * small + 0.02
    starts = batch_windows(huge, 1024, 4096, 1, 10**6)
    assert starts.dtype == np.int64 and len(set(starts.tolist())) == 4096
    assert starts.min() >= 0 and starts.max() < huge


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: windows(8, 8), "8 tokens hold no window of 8"),
        (lambda: windows(0, 8), "0 tokens hold no window of 8"),
        (lambda: windows(9, 0), "9 tokens hold no window of 0"),
        (lambda: batch_windows(100, 8, 0, 1, 0), "a batch of 0 windows"),
        (lambda: batch_windows(100, 8, 4, 1, -1), "at step -1"),
        (lambda: batch_windows(100, 8, 4, 1, 2**62), "beyond 2^63"),
    ],
)
def test_bad_input_is_one_line(call, line: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OrderError, match=line.replace("^", r"\^")) as error:
        call()
    assert "\n" not in str(error.value)


@given(st.integers(1, 20), st.integers(0, 500), st.integers(1, 40))
def test_evaluation_windows_do_not_overlap(block: int, more: int, count: int) -> None:
    tokens = block + 1 + more
    starts = order.evaluation_windows(tokens, block, count)
    assert len(starts) == min(count, windows(tokens, block))
    assert starts[0] == 0 and starts[-1] + block < tokens
    assert all(after - before >= block for before, after in pairwise(starts))


def test_crops_hold_each_window_and_the_token_after_it() -> None:
    split: np.ndarray = np.arange(100, dtype=np.uint16)
    taken = order.crops(split, np.array([0, 40, 91]), 8)
    assert taken.dtype == np.int64
    assert taken.tolist() == [list(range(start, start + 9)) for start in (0, 40, 91)]
