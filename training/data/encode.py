"""Encode documents on all cores, in order and in bounded memory.

Threads are enough: tiktoken releases the interpreter lock while it works, and they share one copy of its tables.
Batches depend on the documents alone, so the output is the same for any number of workers.
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
import tiktoken

from training.data.readers import Document
from training.data.tokenizer import to_array

BATCH = 1 << 18  # bytes of text: large against the cost of handing it over, small in memory

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


class Encoded(NamedTuple):
    parts: dict[str, Part]
    units: int
    bytes_of_text: int
    cost: int


@dataclass(frozen=True)
class Division:
    """Which documents are for validation: of each 1/fraction consecutive ones, one drawn by the seed."""

    fraction: float
    seed: int
    stretch: float
    """Length of the first of these groups: at most the corpus, so that a small one has a validation document too."""

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
    """A number in [0, 1) that depends on the arguments alone."""
    digest = hashlib.blake2b(f"{seed} {purpose} {number}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def units(documents: Iterable[Document], division: Division) -> Iterator[Unit]:
    """Documents with their splits. A long document that is divided between the splits ends in each of them."""
    for index, document in enumerate(documents):
        split = division.split(index)
        closes = document.ends or division.split(index + 1) != split
        yield Unit(document.text, split, closes, document.cost)


def batches(stream: Iterable[Unit]) -> Iterator[list[Unit]]:
    """Units in lists of about BATCH bytes of text."""
    batch: list[Unit] = []
    size = 0
    for unit in stream:
        batch.append(unit)
        size += len(unit.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encode_batch(encoding: tiktoken.Encoding, dtype: str, batch: list[Unit]) -> Encoded:
    """The tokens of a batch by split, as numbers of `dtype`."""
    by_split: dict[str, list[Unit]] = {}
    for unit in batch:
        by_split.setdefault(unit.split, []).append(unit)
    parts = {}
    for split, units in by_split.items():
        tokens = to_array(encoding, [(unit.text.decode(), unit.closes) for unit in units])
        documents = sum(unit.closes for unit in units)
        parts[split] = Part(tokens.astype(dtype), documents, sum(len(unit.text) for unit in units))
    size = sum(part.bytes_of_text for part in parts.values())
    return Encoded(parts, len(batch), size, sum(unit.cost for unit in batch))


def in_order(jobs: Iterable[Job], work: Callable[[Job], Done], workers: int) -> Generator[Done, None, None]:
    """`map` over a pool of threads that reads only as far ahead as the workers need. Closing it stops them."""
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
