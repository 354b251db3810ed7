"""Reads files, folders, globs and data sets of the Hugging Face hub as one stream of documents.

The stream is the same each time it is read, so that a killed prepare can continue: folders are walked by name. Of
WikiText's folder, as it is published, the training file alone is read: its others are what a model of it is tested on.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from training.data.readers import Document, Reading, SourceError, lines, read, row

ROWS = 256  # rows of a data set that are read at a time
# The files of a folder that are read. A file given by its name or by a glob is read whatever its suffix.
SUFFIXES = (".jsonl", ".md", ".ndjson", ".parquet", ".py", ".txt")
# The training file of WikiText as published, beside wiki.valid.* and wiki.test.*: the raw text, or split into words.
WIKITEXT = ("wiki.train.raw", "wiki.train.tokens")


@dataclass(frozen=True)
class Facts:
    """What is known of a source without reading its files."""

    files: int = 0
    bytes: int = 0
    newest: int = 0  # latest modification time, ns
    names: str = ""  # checksum over names and sizes
    times: str = ""  # checksum over paths, sizes and modification times


@dataclass(frozen=True)
class Files:
    """A file, the files of a folder, or those that a glob matches."""

    argument: str

    def paths(self) -> Iterator[Path]:
        """The files, in the same order each time. A name without a file is one of them: reading it is the error."""
        path = Path(self.argument)
        if path.is_dir():
            yield from walk(path)
        elif path.exists() or not glob.has_magic(self.argument):
            yield path
        else:
            names = sorted(glob.glob(self.argument, recursive=True))  # noqa: PTH207  Path's needs a folder
            yield from (Path(name) for name in names if not Path(name).is_dir())

    def facts(self) -> Facts:
        """Their number, sizes and times. SourceError if there is none, or one cannot be looked at."""
        files = size = newest = 0
        is_folder = Path(self.argument).is_dir()
        names, times = hashlib.sha256(), hashlib.sha256()
        for path in self.paths():
            try:
                status = path.stat()
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from error
            files, size, newest = files + 1, size + status.st_size, max(newest, status.st_mtime_ns)
            # relative to the argument, so that a moved corpus counts as the same
            name = os.path.relpath(path, self.argument) if is_folder else path.name
            names.update(f"{name}\0{status.st_size}\0".encode("utf-8", "surrogateescape"))
            times.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
        if not files:
            nothing = f"no {', '.join(SUFFIXES)} or {WIKITEXT[0]} in this folder" if is_folder else "no file matches"
            raise SourceError(f"{self.argument}: {nothing}")
        return Facts(files, size, newest, names.hexdigest(), times.hexdigest())

    def documents(self, reading: Reading) -> Iterator[Document]:
        """The documents of all files, one file after the other. SourceError."""
        for path in self.paths():
            yield from read(path, reading)


def walk(folder: Path) -> Iterator[Path]:
    """The files with SUFFIXES at any depth, by name, without hidden ones; links to folders are not followed. Of a
    folder with one of WIKITEXT the first of those alone, and nothing below it. SourceError."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror}") from error
    published = [entry for name in WIKITEXT for entry in entries if entry.name == name and entry.is_file()]
    if published:
        yield Path(published[0].path)
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):  # following a link to a parent folder would never end
            yield from walk(Path(entry.path))
        elif entry.name.lower().endswith(SUFFIXES) and not entry.is_dir():
            yield Path(entry.path)


@dataclass
class HubSource:
    """A data set of the Hugging Face hub, `hf:NAME` or `hf:NAME:CONFIG`, read with the `datasets` library."""

    argument: str
    split: str = "train"
    revision: str = ""
    stream: bool = False  # read over the network instead of downloading all of it first

    @cached_property
    def data(self) -> Any:
        """The `datasets` object; SourceError if it cannot be loaded."""
        try:
            import datasets
        except ImportError as error:
            raise SourceError(f"{self.argument}: needs the package datasets: pip install datasets") from error
        name, _, config = self.argument.removeprefix("hf:").partition(":")
        datasets.disable_progress_bars()
        try:
            return datasets.load_dataset(
                name, config or None, split=self.split, revision=self.revision or None, streaming=self.stream
            )
        except Exception as error:  # its back-ends raise exceptions of many classes
            raise SourceError(f"{self.argument}: {first_line(error)}") from error

    def facts(self) -> Facts:
        """The data set as one file of its size as an Arrow table; 0 if it is streamed. The checksums are of its name
        and number of rows. SourceError if it cannot be loaded."""
        data = self.data
        rows = 0 if self.stream else len(data)
        size = 0 if self.stream else int(data.data.nbytes)
        names = hashlib.sha256(repr((self.argument, self.split, self.revision, rows)).encode()).hexdigest()
        return Facts(files=1, bytes=size, names=names, times=names)

    def documents(self, reading: Reading) -> Iterator[Document]:
        """A document for each row. SourceError, also for a connection that breaks in between."""
        data, done = self.data, 0
        if data.column_names and reading.text_key not in data.column_names:
            raise SourceError(f'{self.argument}: no column "{reading.text_key}" (--text-key names another)')
        each = 0 if self.stream else int(data.data.nbytes) // max(1, len(data))
        try:
            batches = data.select_columns([reading.text_key]).iter(batch_size=ROWS)
            for done, value in enumerate(chain.from_iterable(batch[reading.text_key] for batch in batches), 1):
                yield from row(value, each, f"{self.argument}: row {done}", reading)
        except SourceError:
            raise
        except Exception as error:  # a broken connection can raise any library's exception
            raise SourceError(f"{self.argument}: after {done} rows: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The class of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@dataclass(frozen=True)
class Corpus:
    """All sources together, as one stream of documents."""

    sources: Sequence[Files | HubSource]
    reading: Reading
    facts: Facts  # the facts when the corpus was opened

    def documents(self) -> Iterator[Document]:
        """The documents that are not empty, from the first one; `reading` then counts anew what is skipped.
        SourceError."""
        self.reading.skipped, self.reading.first_skipped = 0, ""
        for source in self.sources:
            found = source.documents(self.reading)
            yield from (document for document in (lines(found) if self.reading.lines else found) if document.text)

    def count(self, limit: int) -> int:
        """The number of documents and passages, at most `limit`."""
        return sum(1 for _ in islice(self.documents(), limit))

    def changed(self) -> bool:
        """Whether names, sizes or times have changed since the corpus was opened."""
        return look(self.sources) != self.facts

    def describe(self) -> dict[str, Any]:
        """The corpus in the manifest; without times, so that the same corpus gives the same manifest anywhere."""
        return {
            "arguments": [source.argument for source in self.sources],
            "files": self.facts.files,
            "bytes": self.facts.bytes,
            "names_sha256": self.facts.names,
            "text_key": self.reading.text_key,
            "invalid": self.reading.invalid,
            **({"documents": "lines"} if self.reading.lines else {}),
        }


def look(sources: Sequence[Files | HubSource]) -> Facts:
    """The facts of all sources together."""
    files, sizes, newest, names, times = zip(*(astuple(source.facts()) for source in sources), strict=True)
    digests = (hashlib.sha256("".join(each).encode()).hexdigest() for each in (names, times))
    return Facts(sum(files), sum(sizes), max(newest), *digests)


def corpus(
    arguments: Sequence[str], *, text_key: str = "text", invalid: str = "stop", lines: bool = False, **hub_options: Any
) -> Corpus:
    """Open the sources that the arguments name; `hub_options`: split, revision, stream. SourceError."""
    sources: list[Files | HubSource] = [
        HubSource(argument, **hub_options) if argument.startswith("hf:") else Files(argument) for argument in arguments
    ]
    return Corpus(sources, Reading(text_key, lines, invalid), look(sources))
