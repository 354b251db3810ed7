"""Windows of whole documents, as RoBERTa reads them (fairseq's sample-break-mode `complete`).

A window takes documents in a row, each with its end, as long as they fit whole; what is left of it stays empty. Only a
document that is longer than a window is cut: into full windows, and what remains of it begins the next one. (fairseq
leaves such documents out.) For text in lines, as fairseq has it, the documents are lines: data.documents.

The windows of a split are always the same; an epoch reads each once, in an order of its own (training.data.order).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from training.data import order

Array: TypeAlias = npt.NDArray[Any]

END, EMPTY = -1, -2
"""In a window that is read: the end of a document, and a place without a token."""
CHUNK = 1 << 24  # tokens looked through at a time: a split may be larger than the memory


class PackedWindows:
    """The windows of a split, of at most `width` tokens and ends of documents. OrderError for a split without text."""

    position: dict[str, Any] | None = None

    def __init__(self, split: Array, separator: int, width: int) -> None:
        self.split, self.separator, self.width = split, separator, width
        ends = separators(split, separator)
        starts = packed(ends, len(split), width)
        stops: Array = np.append(starts[1:], len(split))
        text = stops - starts - (np.searchsorted(ends, stops) - np.searchsorted(ends, starts))
        filled = text > 0  # not a window of empty documents only
        self.starts, self.stops, self.text = starts[filled], stops[filled], text[filled]
        if not len(self.starts):
            raise order.OrderError("no document with text")

    def batch(self, size: int, seed: int, step: int) -> Array:
        epoch, index = order.epochs(len(self.starts), size, step)
        return order.permuted(index.astype(np.uint64), len(self.starts), order.epoch_keys(epoch, seed)).astype(np.int64)

    def evaluation(self, count: int) -> Array:
        count = min(count, len(self.starts))
        return np.arange(count, dtype=np.int64) * len(self.starts) // count

    def tokens(self, chosen: Array) -> Array:
        found: Array = self.text[chosen]
        return found

    def read(self, chosen: Array) -> Array:
        """int64 (windows, width): the token set's tokens, END and EMPTY."""
        rows: Array = np.full((len(chosen), self.width), EMPTY, dtype=np.int64)
        for row, start, stop in zip(rows, self.starts[chosen].tolist(), self.stops[chosen].tolist(), strict=True):
            row[: stop - start] = self.split[start:stop]
        rows[rows == self.separator] = END
        return rows


def separators(split: Array, separator: int) -> Array:
    """The places of a separator in a split, int64."""
    pieces: list[Array] = [
        np.flatnonzero(split[at : at + CHUNK] == separator) + at for at in range(0, len(split), CHUNK)
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def packed(ends: Array, tokens: int, width: int) -> Array:
    """Where windows begin in a stream of `tokens` with ends of documents at `ends`, int64. A window ends where the next
    begins."""
    starts: Array = np.append(0, ends + 1)  # of documents
    sizes: Array = np.diff(np.append(starts, tokens))
    starts, sizes = starts[sizes > 0], sizes[sizes > 0]
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    # Cut documents into pieces of at most `width`; no piece of a document has room for the one before it.
    pieces: Array = -(-sizes // width)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # of the piece in its document
    begins = np.repeat(starts, pieces) + number * width
    after: Array = np.searchsorted(np.append(begins, tokens), begins + width, side="right") - 1
    # The piece that does not fit any more begins the next window.
    following: list[int] = after.tolist()
    at, found = 0, []
    while at < len(following):
        found.append(at)
        at = following[at]
    chosen: Array = begins[np.array(found, dtype=np.int64)]
    return chosen
