"""Masks: 15 % of the text, 80/10/10, by the window's seed alone; and windows that hold whole documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data import masking, order, packing
from training.data.order import OrderError
from training.data.packing import EMPTY, END, PackedWindows

SEPARATOR = 99
FIRST, LAST = 4, 1004
MASK = LAST


def seeds_of(step: int, count: int, seed: int = 1) -> np.ndarray:
    return np.array(order.window_seeds(seed, step, 0, count), dtype=np.uint64)


def text(rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows of text that ends at another place in each row, with a token before and empty places after it."""
    tokens = np.random.default_rng(0).integers(FIRST, LAST, (rows, length))
    ends: np.ndarray = length - 1 - np.arange(rows) % (length // 2)
    is_text = (np.arange(length) > 0) & (np.arange(length) < ends[:, None])
    return np.where(is_text, tokens, 0), is_text


def test_15_percent_of_the_text_are_chosen_80_10_10() -> None:
    tokens, is_text = text(4000, 200)
    made = masking.masked(tokens, is_text, seeds_of(1, 4000), MASK, FIRST, LAST)
    assert len(made.places) / is_text.sum() == pytest.approx(0.15, rel=0.002)
    assert (made.targets == tokens.flatten()[made.places]).all() and is_text.flatten()[made.places].all()
    untouched: np.ndarray = np.delete(np.arange(tokens.size), made.places)
    assert (made.inputs.flatten()[untouched] == tokens.flatten()[untouched]).all()
    shown = made.inputs.flatten()[made.places]
    kept, hidden = (shown == made.targets).mean(), (shown == MASK).mean()
    assert hidden == pytest.approx(0.8, abs=0.005)
    assert kept == pytest.approx(0.1, abs=0.005)
    random = shown[(shown != MASK) & (shown != made.targets)]
    assert FIRST <= random.min() < FIRST + 10 and LAST - 10 < random.max() < LAST
    # Every place of a window is as likely as any other.
    by_place = np.bincount(made.places % 200, minlength=200)[1:100] / 4000
    assert by_place.min() > 0.12 and by_place.max() < 0.18


def test_the_number_is_rounded_both_ways_and_is_known_from_the_seed() -> None:
    tokens = np.full(10_000, 30)
    numbers = masking.counts(tokens, seeds_of(3, 10_000))
    assert set(numbers.tolist()) == {4, 5} and numbers.mean() == pytest.approx(4.5, abs=0.03)
    assert masking.counts(np.array([1, 2, 3]), seeds_of(1, 3)).tolist() == [1, 1, 1], "never a window without any"


def test_masks_are_the_same_by_seed_and_others_in_each_epoch() -> None:
    tokens, is_text = text(8, 64)

    def places(step: int, seed: int = 1) -> bytes:
        return masking.masked(tokens, is_text, seeds_of(step, 8, seed), MASK, FIRST, LAST).places.tobytes()

    assert places(1) == places(1)
    assert len({places(step, seed) for step in range(20) for seed in (1, 2)}) == 40


def test_a_window_has_its_masks_in_any_batch() -> None:
    tokens, is_text = text(8, 64)
    seeds = seeds_of(1, 8)
    whole = masking.masked(tokens, is_text, seeds, MASK, FIRST, LAST)
    parts = [
        masking.masked(tokens[at : at + 2], is_text[at : at + 2], seeds[at : at + 2], MASK, FIRST, LAST)
        for at in range(0, 8, 2)
    ]
    assert (np.concatenate([part.inputs for part in parts]) == whole.inputs).all()
    assert np.concatenate([part.targets for part in parts]).tolist() == whole.targets.tolist()


documents = st.lists(st.integers(0, 60), min_size=1, max_size=40)


@settings(deadline=None)
@given(documents, st.integers(2, 30), st.booleans())
def test_windows_hold_whole_documents_in_order(sizes: list[int], width: int, closed: bool) -> None:
    stream: list[int] = []
    for size in sizes:
        stream += [*(len(stream) % 90 for _ in range(size)), SEPARATOR]
    split = np.array(stream if closed else stream[:-1], dtype=np.uint16)
    if not (split != SEPARATOR).any():
        with pytest.raises(OrderError, match="no document with text"):
            PackedWindows(split, SEPARATOR, width)
        return
    windows = PackedWindows(split, SEPARATOR, width)
    every = np.arange(len(windows.starts))
    rows = windows.read(every)
    assert windows.tokens(every).tolist() == (rows >= 0).sum(axis=1).tolist() and (rows >= 0).any(axis=1).all()
    assert (rows[rows >= 0] == split[split != SEPARATOR]).all(), "all of the text, once, in order"
    starts = [0, *(np.flatnonzero(split == SEPARATOR) + 1).tolist()]
    for start, stop in zip(windows.starts.tolist(), windows.stops.tolist(), strict=True):
        assert 0 < stop - start <= width
        document = max(begin for begin in starts if begin <= start)
        following = min([begin for begin in starts if begin > start], default=len(split))
        # It begins with a document, or in one that is longer than a window; and it ends likewise.
        assert start == document or (following - document > width and (start - document) % width == 0)
        assert stop in starts or stop == len(split) or stop - start == width


def test_documents_share_a_window_only_if_they_fit() -> None:
    split = np.array([1, 2, SEPARATOR, 3, SEPARATOR, 4, 5, 6, SEPARATOR, *range(10, 21), SEPARATOR, 7, SEPARATOR])
    rows = PackedWindows(split, SEPARATOR, 5).read(np.arange(5))
    assert rows.tolist() == [
        [1, 2, END, 3, END],
        [4, 5, 6, END, EMPTY],
        [10, 11, 12, 13, 14],
        [15, 16, 17, 18, 19],
        [20, END, 7, END, EMPTY],
    ]


def test_an_epoch_reads_every_window_once_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK", 7)
    split = np.tile([1, 2, 3, SEPARATOR], 50)
    windows = PackedWindows(split, SEPARATOR, 8)
    assert len(windows.starts) == 25
    epochs = [np.concatenate([windows.batch(5, 1, 5 * epoch + step) for step in range(5)]) for epoch in range(3)]
    assert all(sorted(epoch.tolist()) == list(range(25)) for epoch in epochs)
    assert len({epoch.tobytes() for epoch in epochs}) == 3
    assert windows.evaluation(5).tolist() == [0, 5, 10, 15, 20] and len(windows.evaluation(90)) == 25
