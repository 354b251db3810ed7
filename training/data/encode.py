"""Documents to tokens on all cores, in order and in bounded memory.

Threads are enough: tiktoken gives up Python's lock while it works, and one copy of its tables serves all of them.
What a batch is depends on the documents alone, so the output is the same whatever the number of workers.
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

BATCH = 1 << 18  # bytes of text: far more than handing over costs, and little to hold for each worker

Job = TypeVar("Job")
Done = TypeVar("Done")


class Unit(NamedTuple):
    """A document, or a passage of a long one, with the split that it goes to."""

    text: bytes
    split: str
    closes: bool  # a separator follows it
    cost: int


@dataclass
class Part:
    """What a batch adds to one split."""

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
    """Which documents are for validation: one, drawn by the seed, of each 1/fraction in a row."""

    fraction: float
    seed: int
    stretch: float
    """Of the first of these rows: shorter where the corpus is, so that a small one has a validation document too."""

    @classmethod
    def of(cls, fraction: float, seed: int, count: Callable[[int], int]) -> Division:
        """`count(limit)` says how many units the corpus has, looking no further than the limit."""
        if not fraction:
            return cls(0.0, seed, 0.0)
        return cls(fraction, seed, min(1 / fraction, count(ceil(1 / fraction))))

    def split(self, index: int) -> str:
        if not self.fraction:
            return "train"
        rows = {int(index * self.fraction), int((index + 1) * self.fraction)}
        return "val" if any(self.drawn(row) == index for row in rows) else "train"

    def drawn(self, row: int) -> int:
        draw = uniform(self.seed, "division", row)
        return int((row + draw) / self.fraction) if row else int(draw * self.stretch)


def uniform(seed: int, purpose: str, number: int) -> float:
    """In [0, 1), the same everywhere."""
    digest = hashlib.blake2b(f"{seed} {purpose} {number}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def units(documents: Iterable[Document], division: Division) -> Iterator[Unit]:
    """Where a long document is divided between the splits, each of its parts is closed like a document."""
    for index, document in enumerate(documents):
        split = division.split(index)
        closes = document.ends or division.split(index + 1) != split
        yield Unit(document.text, split, closes, document.cost)


def batches(stream: Iterable[Unit]) -> Iterator[list[Unit]]:
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
    """`map` over a pool that never reads further ahead than the workers need. Stops them when it is closed."""
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
