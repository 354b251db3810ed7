"""Encode documents on all cores, in order and in bounded memory.

Threads are enough: both engines release the interpreter lock while they work, and threads share one copy of the tables.
Batches depend only on the documents, so the output is the same for any number of workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from training.data.readers import Document
from training.data.tokenizer import EngineError, TokenizerEngine
from training.streams import grouped

BATCH = 1 << 18  # bytes of text: large enough to amortise handing it to a thread, small in memory
CHECKED = 1 << 13  # bytes of a text that both engines encode
ONE_IN = 8  # one batch in 8 has such a text, so that one byte in 256 is checked


class Unit(NamedTuple):
    """A document, or a passage of a long one, and its split."""

    number: int  # in the corpus
    text: bytes
    split: str
    closes: bool  # a separator follows it
    cost: int  # bytes of the source read for it


class Part(NamedTuple):
    """What a batch adds to a split."""

    tokens: npt.NDArray[Any]
    documents: int
    bytes_of_text: int


class Encoded(NamedTuple):
    """A batch as tokens, by split, with what it has used of the corpus."""

    parts: dict[str, Part]
    units: int
    cost: int
    compared: int  # bytes of text that both engines encoded, to the same tokens


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
        return cls(fraction, seed, min(1 / fraction, count(ceil(1 / fraction))) if fraction else 0.0)

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
        yield Unit(index, document.text, split, closes, document.cost)


def batches(stream: Iterable[Unit]) -> Iterator[list[Unit]]:
    """Units in batches of about BATCH bytes of text."""
    return grouped(stream, lambda unit: len(unit.text), BATCH)


@dataclass(frozen=True)
class Encoder:
    """Encodes batches, to tokens by split as numbers of `dtype`."""

    engine: TokenizerEngine
    reference: TokenizerEngine | None
    """The engine that a sample of the text is compared with; None if `engine` is the reference itself."""
    dtype: str
    seed: int

    def __call__(self, batch: list[Unit]) -> Encoded:
        parts = {}
        for split in {unit.split for unit in batch}:
            units = [unit for unit in batch if unit.split == split]
            tokens = self.engine.encode([(unit.text, unit.closes) for unit in units]).astype(self.dtype)
            parts[split] = Part(tokens, sum(unit.closes for unit in units), sum(len(unit.text) for unit in units))
        return Encoded(parts, len(batch), sum(unit.cost for unit in batch), self.compare(batch))

    def compare(self, batch: list[Unit]) -> int:
        """Compare the engines on the first batch and on a sample; returns the bytes compared. EngineError."""
        first = batch[0].number
        draw = uniform(self.seed, "compare", first) * ONE_IN
        if self.reference is None or (first and draw >= 1):
            return 0
        texts, where = [(unit.text, unit.closes) for unit in batch], "the first documents"
        if first:
            unit = batch[int(draw * len(batch))]
            begin = int(uniform(self.seed, "from", first) * max(1, len(unit.text) - CHECKED))
            part = unit.text[begin : begin + CHECKED].decode(errors="ignore")  # a cut may go through a character
            texts, where = [(part.encode(), True)], f"the text from byte {begin} of document {unit.number}"
        tokens, expected = self.engine.encode(texts), self.reference.encode(texts)
        if not np.array_equal(tokens, expected):
            size = min(len(tokens), len(expected))
            at = next(iter(np.flatnonzero(tokens[:size] != expected[:size])), size)
            raise EngineError(f"{self.engine.name} and {self.reference.name} differ at token {at} of {where}")
        return sum(len(text) for text, _ in texts)
