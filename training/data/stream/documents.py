"""The order of a stream's documents: every row of every file once in an epoch, from the seed and the source alone.

An epoch reads the files in an order of its own. Rows that follow each other, `shuffle` of them or GROUP_BYTES of text,
are a group; its rows come in an order of their own. So a document moves by at most a group, and the order can be made
again from the place where a group begins: no more than one group is read twice when a run resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from training.data import order
from training.data.encode import Division
from training.data.readers import Reading, SourceError
from training.data.stream.fetch import Fetcher
from training.data.stream.rows import Row, rows
from training.data.stream.source import StreamFile

GROUP_BYTES = 64 << 20  # of text; a group is in memory, and the next one is read ahead
UNSHUFFLED = 1024  # rows of a group when nothing is shuffled


@dataclass(frozen=True)
class Place:
    """Where a group of documents begins."""

    epoch: int = 0
    file: int = 0  # in the epoch's order
    row: int = 0  # in the file
    byte: int = 0  # in the file's text, unpacked
    number: int = 0  # documents before it, over all epochs

    def to_json(self) -> dict[str, int]:
        """Every field by its name: `Place(**...)` is the place again."""
        return asdict(self)


@dataclass(frozen=True)
class Group:
    """Rows that follow each other in a file or in several, in the order in which they are trained on."""

    begins: Place
    rows: list[Row]  # in the order in which they are read


@dataclass(frozen=True)
class HeldOut:
    """The rows of the first file by name that are for validation, in a source without a validation split."""

    name: str
    division: Division

    def has(self, name: str, row: Row) -> bool:
        """Whether a row of the file `name` is for validation."""
        return name == self.name and self.division.split(row.number) == "val"


@dataclass(frozen=True)
class Documents:
    """The rows of all files, without those that are held out, in an order that `seed` and `shuffle` determine."""

    fetcher: Fetcher
    files: tuple[StreamFile, ...]
    reading: Reading
    seed: int
    shuffle: int
    """Documents of a group; 0: neither these nor the files are shuffled."""
    held_out: HeldOut | None = None

    def groups(self, place: Place) -> Iterator[Group]:
        """The groups from one on, epoch after epoch, without an end. SourceError, also for an epoch without text."""
        while True:
            number = place.number
            for group in self._epoch(place):
                yield group
                number = group.begins.number + len(group.rows)
            if number == place.number and (place.file, place.row) == (0, 0):
                raise SourceError(f"{self.fetcher.source.word}: no text in any file")
            place = Place(epoch=place.epoch + 1, number=number)

    def _epoch(self, place: Place) -> Iterator[Group]:
        """The groups of an epoch from a place on. No group goes beyond its end."""
        found: list[Row] = []
        size, begins = 0, place
        for index, file in list(enumerate(self.in_order(place.epoch)))[place.file :]:
            at = (place.row, place.byte) if index == place.file else (0, 0)
            for row in rows(self.fetcher, file, *at, self.reading):
                if self.held_out and self.held_out.has(file.name, row):
                    continue
                found.append(row)
                size += row.size
                if len(found) == (self.shuffle or UNSHUFFLED) or size >= GROUP_BYTES:
                    yield self._shuffled(begins, found)
                    begins = Place(place.epoch, index, row.number + 1, row.end, begins.number + len(found))
                    found, size = [], 0
        if found:
            yield self._shuffled(begins, found)

    def in_order(self, epoch: int) -> list[StreamFile]:
        """The files in the order of an epoch."""
        if not self.shuffle:
            return list(self.files)
        return [self.files[at] for at in self._permutation(len(self.files), epoch, 0)]

    def _shuffled(self, begins: Place, found: list[Row]) -> Group:
        if not self.shuffle:
            return Group(begins, found)
        return Group(begins, [found[at] for at in self._permutation(len(found), begins.epoch, begins.number + 1)])

    def _permutation(self, count: int, epoch: int, number: int) -> list[int]:
        """An order of `count` items, for each number another."""
        epoch_key = order.epoch_keys(np.array([epoch], dtype=np.uint64), self.seed)
        key: Any = order.mixed(epoch_key ^ order.mixed(np.array([number], dtype=np.uint64)))
        index: Any = np.arange(count, dtype=np.uint64)
        chosen: list[int] = order.permuted(index, count, np.repeat(key, count)).tolist()
        return chosen
