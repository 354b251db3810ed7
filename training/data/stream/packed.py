"""A stream's documents as tokens, packed: every document and a separator after it, one after the other.

Windows of `block` tokens are cut from that wherever they end, each with the next token, as from a token set; they go on
from one epoch into the next, so nothing is left out. The texts are encoded ahead by threads, in batches that depend on
the documents alone. gigatoken encodes them and tiktoken a sample of them, as when a token set is prepared; if the two
differ, tiktoken goes on from that batch, and the position in a checkpoint says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from training.data.encode import BATCH, Encoder, Unit
from training.data.stream.documents import Documents, Group, Place
from training.data.stream.rows import Row
from training.data.tokenizer import EngineError
from training.streams import grouped, made_ahead, ordered_map

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Position:
    """The next token of a stream that nothing was trained on: all that a checkpoint keeps."""

    group: Place = field(default_factory=Place)
    document: int = 0  # in the group's order
    token: int = 0  # in the document
    exact: bool = False  # whether tiktoken encodes, as gigatoken was found to differ

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint has it."""
        return asdict(self)

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Position:
        """The position that `to_json` made this from."""
        return cls(**{**saved, "group": Place(**saved["group"])})


class Step(NamedTuple):
    """The windows of one step, of all ranks, and the position after them."""

    windows: Array  # (windows, block + 1) tokens
    after: Position


class _Batch(NamedTuple):
    """Documents of a group in a row, encoded."""

    group: Place
    first: int  # document of the group
    begins: Array  # where each document begins in `tokens`
    tokens: Array
    exact: bool

    def position(self, token: int) -> Position:
        """Of a token of the batch."""
        at = int(np.searchsorted(self.begins, token, side="right")) - 1
        return Position(self.group, self.first + at, token - int(self.begins[at]), self.exact)


@dataclass(frozen=True)
class Encoders:
    """What encodes the stream: `fast`, and `exact`, the reference, from where `fast` is found to differ."""

    fast: Encoder
    exact: Encoder
    threads: int
    separator: int


class Packed:
    """The documents as steps of windows. `say` gets a line if the engines are found to differ."""

    def __init__(self, documents: Documents, encoders: Encoders, say: Callable[[str], None]) -> None:
        self.documents, self.encoders, self.say = documents, encoders, say

    def steps(self, windows: int, block: int, position: Position) -> Iterator[Step]:
        """Steps of so many windows of `block` tokens and the next one, from a position on, without an end."""
        waiting: deque[_Batch] = deque()
        offset = have = 0  # tokens of the first batch that are done, and of all batches that are not
        for batch in self._batches(position):
            if not waiting and not have:  # the first of all
                offset = int(batch.begins[position.document - batch.first]) + position.token
                have = -offset
            waiting.append(batch)
            have += len(batch.tokens)
            while have > windows * block:
                flat = _joined(waiting, offset, windows * block + 1)
                offset, have = offset + windows * block, have - windows * block
                while offset >= len(waiting[0].tokens):
                    offset -= len(waiting.popleft().tokens)
                chosen = np.lib.stride_tricks.sliding_window_view(flat, block + 1)[::block]
                yield Step(np.ascontiguousarray(chosen), waiting[0].position(offset))

    def _batches(self, position: Position) -> Iterator[_Batch]:
        """The batches from the one on that has a position. If the engines differ, the rest is the exact one's."""
        encoder, exact = (self.encoders.exact, True) if position.exact else (self.encoders.fast, False)
        while True:
            work = partial(self._encode, encoder, exact)
            texts = self._texts(position)
            try:
                with closing(ordered_map(work, texts, self.encoders.threads, 2 * self.encoders.threads + 1)) as found:
                    for batch in found:
                        yield batch
                        position = Position(batch.group, batch.first + len(batch.begins))
                return
            except EngineError as error:
                if exact:
                    raise
                encoder, exact = self.encoders.exact, True
                self.say(f"{error}: going on with {encoder.engine.name}")

    def _texts(self, position: Position) -> Iterator[tuple[Place, int, list[Row]]]:
        """Group, first document and rows of each batch. Where a batch ends depends on its group alone."""
        with closing(made_ahead(self.documents.groups(position.group), 1)) as groups:
            for group in groups:
                done = position.document if group.begins == position.group else 0
                yield from (each for each in _divided(group) if each[1] + len(each[2]) > done)

    def _encode(self, encoder: Encoder, exact: bool, texts: tuple[Place, int, list[Row]]) -> _Batch:
        group, first, rows = texts
        units = [
            Unit(group.number + first + at, document.text, "train", document.ends, 0)
            for at, row in enumerate(rows)
            for document in row.documents
        ]
        tokens = encoder(units).parts["train"].tokens
        closed = np.cumsum([sum(document.ends for document in row.documents) for row in rows])
        ends = np.flatnonzero(tokens == self.encoders.separator)[closed - 1] + 1
        return _Batch(group, first, np.append(0, ends[:-1]), tokens, exact)


def _divided(group: Group) -> Iterator[tuple[Place, int, list[Row]]]:
    first = 0
    for rows in grouped(group.rows, lambda row: row.size, BATCH):
        yield group.begins, first, rows
        first += len(rows)


def _joined(waiting: deque[_Batch], offset: int, count: int) -> Array:
    """The first `count` tokens after `offset`."""
    parts: list[Array] = []
    for batch in waiting:
        part = batch.tokens[offset : offset + count]
        parts.append(part)
        offset, count = 0, count - len(part)
        if not count:
            break
    return np.concatenate(parts)
