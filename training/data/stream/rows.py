"""The rows of a file of a stream, from any place in it on.

A place is a row and, for JSON lines, the byte after the row before it. In a gzipped file that byte is one of the
unpacked text: what comes before is unpacked again, but neither parsed nor tokenised. In a parquet file whole row groups
are skipped.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from training.data import readers
from training.data.readers import LINE, Document, Reading, SourceError, text_of
from training.data.stream.fetch import BLOCK, Fetcher
from training.data.stream.source import StreamFile, kind

ROWS = 64  # of a parquet file, read at a time


class Row(NamedTuple):
    """A row with text: a line of JSON or a row of a parquet file."""

    documents: tuple[Document, ...]  # with text; a long one is in passages
    number: int  # in the file, from 0
    end: int  # the byte after it; 0 in a parquet file

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(len(document.text) for document in self.documents)


def rows(fetcher: Fetcher, file: StreamFile, number: int, byte: int, reading: Reading) -> Iterator[Row]:
    """The rows from `number` on, which begins at `byte`; rows without text are left out. SourceError."""
    where = f"{fetcher.source.word}: {file.name}"
    if kind(file.name) == ".parquet":
        yield from _parquet(fetcher, file, number, reading, where)
        return
    pieces = _unpacked(fetcher, file, byte, where) if file.name.lower().endswith(".gz") else fetcher.blocks(file, byte)
    for at, line in enumerate(lines(pieces, where), number):
        byte += len(line)
        if not line.strip():
            continue
        place = f"{where}:{at + 1}"
        if documents := _documents(text_of(line, place, reading), place, reading):
            yield Row(documents, at, byte)


def lines(pieces: Iterator[bytes], where: str) -> Iterator[bytes]:
    """The lines of a text in pieces, each with its end. SourceError for a line that is too long."""
    begun: list[bytes] = []
    size = 0
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for line in [*(line + b"\n" for line in whole), *([rest] if rest else [])]:
            begun.append(line)
            size += len(line)
            if line.endswith(b"\n"):
                yield b"".join(begun)
                begun, size = [], 0
            elif size > LINE:
                raise SourceError(f"{where}: a line is longer than {LINE >> 20} MiB")
    if begun:
        yield b"".join(begun)


def _unpacked(fetcher: Fetcher, file: StreamFile, byte: int, where: str) -> Iterator[bytes]:
    """The text of a gzipped file from `byte` on. SourceError for a file that is damaged or cut."""
    unpack, done = zlib.decompressobj(wbits=31), True
    for block in fetcher.blocks(file, 0):
        while block:
            try:
                text = unpack.decompress(block, BLOCK)
            except zlib.error as error:
                raise SourceError(f"{where}: not a gzip file, or a damaged one ({error})") from error
            done = unpack.eof
            block = unpack.unused_data.lstrip(b"\0") if done else unpack.unconsumed_tail
            if done:  # a file may consist of several, and have zeros at its end
                unpack = zlib.decompressobj(wbits=31)
            skipped = min(byte, len(text))
            byte -= skipped
            if skipped < len(text):
                yield text[skipped:]
    if not done:
        raise SourceError(f"{where}: a gzip file without its end")


def _parquet(fetcher: Fetcher, file: StreamFile, number: int, reading: Reading, where: str) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise SourceError(f"{where}: reading parquet needs the package pyarrow: pip install pyarrow") from error
    raw = io.BufferedReader(_FetchedFile(fetcher, file), BLOCK)
    try:
        with ParquetFile(pyarrow.PythonFile(raw, "r"), buffer_size=1 << 20, pre_buffer=False) as opened:
            if reading.text_key not in opened.schema_arrow.names:
                raise SourceError(f'{where}: no column "{reading.text_key}" (data.text_key names another)')
            first, skip = _row_groups(opened.metadata, number)
            groups = list(range(first, opened.metadata.num_row_groups))
            batches = opened.iter_batches(ROWS, groups, columns=[reading.text_key], use_threads=False)
            values = (value for batch in batches for value in batch.column(0).to_pylist())
            for at, value in zip(count(number - skip), values, strict=False):
                if at >= number and (documents := _documents(value, f"{where}: row {at + 1}", reading)):
                    yield Row(documents, at, 0)
    except pyarrow.ArrowException as error:
        raise SourceError(f"{where}: not a complete parquet file ({str(error).splitlines()[0]})") from error


def _row_groups(metadata: object, number: int) -> tuple[int, int]:
    """The row group that has row `number`, and how many of its rows come before that one."""
    group = 0
    while group < metadata.num_row_groups and number >= metadata.row_group(group).num_rows:  # type: ignore[attr-defined]
        number -= metadata.row_group(group).num_rows  # type: ignore[attr-defined]
        group += 1
    return group, number


def _documents(text: object, where: str, reading: Reading) -> tuple[Document, ...]:
    found = readers.row(text, 0, where, reading)
    return tuple(document for document in (readers.lines(found) if reading.lines else found) if document.text)


class _FetchedFile(io.RawIOBase):
    """A file of a source that can be read anywhere, as pyarrow needs it."""

    def __init__(self, fetcher: Fetcher, file: StreamFile) -> None:
        self._fetcher, self._file, self._at = fetcher, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        end = min(self._file.size, self._at + len(buffer))
        data = self._fetcher.read(self._file, self._at, end) if end > self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
