"""Read the documents of a file: plain text, JSON lines, parquet. Memory is bounded by a document, not by the file.

A document longer than LONGEST is read as passages, cut where the cut does not change the tokens: between a letter or
digit and the white space after it, which no pattern of tiktoken's encodings crosses.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TextIO

LONGEST = 1 << 20  # characters: a longer document is read as passages
PASSAGE = 1 << 16  # characters of a passage, or a little more without white space
LINE = 1 << 28  # bytes: a longer line is an error, not a document
EXACT = re.compile(r"[^\W_](?=[ \t\r\n])")
NEARLY = re.compile(r"\S(?=\s)")  # where no letter precedes white space: at most one token differs
BUFFER = 1 << 18  # bytes read at once: 8 KiB, the default, costs a quarter of the time of reading
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair: not a character
INVALID = ("stop", "skip", "replace")


class SourceError(ValueError):
    """Input that cannot be read; the message is one line for the user."""


class Document(NamedTuple):
    """A document, or a passage of a long one."""

    text: bytes  # UTF-8
    ends: bool  # False: the next passage continues the document
    cost: int  # bytes of the source read for it


@dataclass
class Reading:
    """How to read documents, and which were skipped."""

    text_key: str = "text"
    lines: bool = False  # each line that is not empty is a document
    invalid: str = "stop"  # what to do with text that is not UTF-8: stop, skip the document, or replace with U+FFFD
    skipped: int = 0
    first_skipped: str = ""  # where the first skipped document was

    def refuse(self, where: str, reason: str) -> None:
        """Count a document that is skipped, or raise SourceError."""
        if self.invalid != "skip":
            raise SourceError(
                f"{where}: not UTF-8 ({reason}); "
                "--invalid skip skips such documents, --invalid replace puts U+FFFD there"
            )
        self.skipped += 1
        self.first_skipped = self.first_skipped or where


def read(path: Path, reading: Reading) -> Iterator[Document]:
    """The documents of a file, by its suffix. SourceError for a file that cannot be read."""
    kinds = {".jsonl": json_lines, ".ndjson": json_lines, ".parquet": parquet}
    try:
        if not path.is_file():
            raise SourceError(f"{path}: not a regular file")
        yield from kinds.get(path.suffix.lower(), plain)(path, reading)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error


def plain(path: Path, reading: Reading) -> Iterator[Document]:
    """The text of a whole file, as one document or in passages. With `invalid` = skip it is read twice, first to see
    whether it is UTF-8."""
    errors = "replace" if reading.invalid == "replace" else "strict"
    try:
        if reading.invalid == "skip":  # read all of it before the first passage is yielded
            with path.open(encoding="utf-8", newline="") as file:
                while file.read(LONGEST):
                    pass
        with path.open(encoding="utf-8", errors=errors, newline="") as file:
            for text, ends in passages(file):
                raw = text.encode()
                yield Document(raw, ends, len(raw))
    except UnicodeDecodeError as error:
        reading.refuse(str(path), error.reason)


def json_lines(path: Path, reading: Reading) -> Iterator[Document]:
    """A document for each line that is not empty. SourceError for a line that is too long or not JSON."""
    with path.open("rb", buffering=BUFFER) as file:
        for number in count(1):
            line, where = file.readline(LINE + 1), f"{path}:{number}"
            if not line:
                return
            if len(line) > LINE:
                raise SourceError(f"{where}: the line is longer than {LINE >> 20} MiB")
            if not line.strip():
                continue
            yield from row(text_of(line, where, reading), len(line), where, reading)


def text_of(line: bytes, where: str, reading: Reading) -> object:
    """What a line of JSON has under the text's key; None if it has no such key. SourceError for a line that is not
    JSON."""
    try:
        value = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where}: not a line of JSON ({error})") from error
    return value.get(reading.text_key) if isinstance(value, dict) else None


def parquet(path: Path, reading: Reading) -> Iterator[Document]:
    """A document for each row, its `cost` an equal share of the file's size. SourceError, also without the package
    pyarrow."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise SourceError(f"{path}: reading parquet needs the package pyarrow: pip install pyarrow") from error
    size = path.stat().st_size
    try:
        # A small buffer per column and few rows at a time; otherwise a whole row group, of any size, is in memory.
        with ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            if reading.text_key not in file.schema_arrow.names:
                raise SourceError(f'{path}: no column "{reading.text_key}" (--text-key names another)')
            rows = max(1, file.metadata.num_rows)
            batches = file.iter_batches(batch_size=64, columns=[reading.text_key], use_threads=False)
            values = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
            for number, value in enumerate(values, 1):
                cost = size * number // rows - size * (number - 1) // rows
                yield from row(value, cost, f"{path}: row {number}", reading)
    except pyarrow.ArrowException as error:
        raise SourceError(f"{path}: not a complete parquet file ({str(error).splitlines()[0]})") from error


def lines(documents: Iterable[Document]) -> Iterator[Document]:
    """The lines of documents, each a document; lines of white space only are left out. SourceError for a line that is
    too long."""
    begun, cost = b"", 0
    for document in documents:
        *whole, begun = (begun + document.text).split(b"\n")
        if document.ends:
            whole, begun = [*whole, begun], b""
        if len(begun) > LINE:
            raise SourceError(f"a line is longer than {LINE >> 20} MiB")
        cost += document.cost
        for line in whole:
            if line.strip():
                yield Document(line.removesuffix(b"\r"), True, cost)
                cost = 0


def row(text: Any, cost: int, where: str, reading: Reading) -> Iterator[Document]:
    """The document of one row, or its passages. SourceError if it is not a text."""
    if not isinstance(text, str):
        raise SourceError(f'{where}: no text under "{reading.text_key}" (--text-key names another)')
    try:
        raw = text.encode()
    except UnicodeEncodeError:  # from JSON's \\ud800, or from a byte that is not UTF-8 (surrogateescape)
        if reading.invalid != "replace":
            reading.refuse(where, "a byte or half a surrogate pair by itself")
            return
        text = SURROGATE.sub("\ufffd", text)
        raw = text.encode()
    if len(text) <= LONGEST:
        yield Document(raw, True, cost)
        return
    for passage, ends in passages(io.StringIO(text, newline="")):
        yield Document(passage.encode(), ends, cost)
        cost = 0


def passages(file: TextIO) -> Iterator[tuple[str, bool]]:
    """(text, ends) of the file in one piece or in passages; `ends` is True for the last."""
    text, at = file.read(LONGEST + 1), 0
    if len(text) <= LONGEST:
        yield text, True
        return
    while True:
        while len(text) - at > 2 * PASSAGE:
            end = cut(text, at + PASSAGE)
            yield text[at:end], False
            at = end
        more = file.read(LONGEST)
        if not more:
            yield text[at:], True
            return
        text, at = text[at:] + more, 0


def cut(text: str, at: int) -> int:
    """The first place from `at` on, within half a passage, where a cut does not change the tokens; `at` if none."""
    for pattern in (EXACT, NEARLY):
        if found := pattern.search(text, at, at + PASSAGE // 2):
            return found.end()
    return at
