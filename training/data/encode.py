"""Encode documents on all cores, in order and in bounded memory.

Threads are enough: both engines release the interpreter lock while they work, and threads share one copy of the tables.
Batches depend only on the documents, so the output is the same for any number of workers.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, TypeVar

import numpy.typing as npt

from training.data.engine import Engine, compare
from training.data.readers import Document

BATCH = 1 << 18  # bytes of text: large enough to amortise handing it to a thread, small in memory
CHECKED = 1 << 13  # bytes of a text that both engines encode
ONE_IN = 8  # one batch in 8 has such a text, so that one byte in 256 is checked

Job = TypeVar("Job")
Done = TypeVar("Done")


class Unit(NamedTuple):
    """A document, or a passage of a long one, and its split."""

    text: bytes
    split: str
    closes: bool  # a separator follows it
    cost: int


@dataclass
class Part:
    """What a batch adds to a split."""

    tokens: npt.NDArray[Any]
    documents: int
    bytes_of_text: int


class Batch(NamedTuple):
    first: int
    """The number of its first unit in the corpus."""
    units: list[Unit]


class Encoded(NamedTuple):
    parts: dict[str, Part]
    units: int
    bytes_of_text: int
    cost: int
    compared: int
    """Bytes of text that both engines encoded, to the same tokens."""


@dataclass(frozen=True)
class Division:
    """Which documents are for validation: one of each group of 1/fraction consecutive ones, drawn by the seed."""

    fraction: float
    seed: int
    stretch: float
    """Length of the first group: at most the corpus, so that a small corpus has a validation document too."""

    @classmethod
    def of(cls, fraction: float, seed: int, count: Callable[[int], int]) -> Division:
        """`count(limit)` returns the number of units of the corpus, at most `limit`."""
        if not fraction:
            return cls(0.0, seed, 0.0)
        return cls(fraction, seed, min(1 / fraction, count(ceil(1 / fraction))))

    def split(self, index: int) -> str:
        """The split of a unit by its number in the corpus: train or val."""
        if not self.fraction:
            return "train"
        groups = {int(index * self.fraction), int((index + 1) * self.fraction)}
        return "val" if any(self.drawn(group) == index for group in groups) else "train"

    def drawn(self, group: int) -> int:
        """The unit of this group that is for validation."""
        draw = uniform(self.seed, "division", group)
        return int((group + draw) / self.fraction) if group else int(draw * self.stretch)


def uniform(seed: int, purpose: str, number: int) -> float:
    """A pseudorandom number in [0, 1) that depends only on the arguments."""
    digest = hashlib.blake2b(f"{seed} {purpose} {number}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def units(documents: Iterable[Document], division: Division) -> Iterator[Unit]:
    """Documents with their splits. A long document that is divided between the splits ends in each of them."""
    for index, document in enumerate(documents):
        split = division.split(index)
        closes = document.ends or division.split(index + 1) != split
        yield Unit(document.text, split, closes, document.cost)


def batches(stream: Iterable[Unit], first: int) -> Iterator[Batch]:
    """Units in batches of about BATCH bytes of text; `first` is the number of the stream's first unit in the corpus."""
    batch: list[Unit] = []
    size = 0
    for unit in stream:
        batch.append(unit)
        size += len(unit.text)
        if size >= BATCH:
            yield Batch(first, batch)
            first += len(batch)
            batch, size = [], 0
    if batch:
        yield Batch(first, batch)


@dataclass(frozen=True)
class Encoder:
    """Encodes batches, to tokens by split as numbers of `dtype`."""

    engine: Engine
    reference: Engine | None
    """The engine that a sample of the text is compared with; None if `engine` is the reference itself."""
    dtype: str
    seed: int

    def __call__(self, batch: Batch) -> Encoded:
        by_split: dict[str, list[Unit]] = {}
        for unit in batch.units:
            by_split.setdefault(unit.split, []).append(unit)
        parts = {}
        for split, units in by_split.items():
            tokens = self.engine.encode([(unit.text, unit.closes) for unit in units])
            documents = sum(unit.closes for unit in units)
            parts[split] = Part(tokens.astype(self.dtype), documents, sum(len(unit.text) for unit in units))
        size = sum(part.bytes_of_text for part in parts.values())
        cost = sum(unit.cost for unit in batch.units)
        return Encoded(parts, len(batch.units), size, cost, self.compare(batch))

    def compare(self, batch: Batch) -> int:
        """Compare the engines on the corpus' first batch and on a text from some of the others; returns the bytes
        compared. EngineError if they differ."""
        if self.reference is None:
            return 0
        if batch.first == 0:
            texts = [(unit.text, unit.closes) for unit in batch.units]
            return compare(self.engine, self.reference, texts, "the first documents")
        draw = uniform(self.seed, "compare", batch.first) * ONE_IN
        if draw >= 1:
            return 0
        number = int(draw * len(batch.units))
        text = batch.units[number].text
        begin = int(uniform(self.seed, "from", batch.first) * max(1, len(text) - CHECKED))
        part = text[begin : begin + CHECKED].decode(errors="ignore").encode()  # a cut may go through a character
        where = f"the text from byte {begin} of document {batch.first + number}"
        return compare(self.engine, self.reference, [(part, True)], where)


def in_order(jobs: Iterable[Job], work: Callable[[Job], Done], workers: int) -> Generator[Done, None, None]:
    """Like `map` over a pool of threads, but it reads at most 2 * workers jobs ahead. Closing it stops the threads."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="encode")
    waiting: deque[Future[Done]] = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(work, job))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
