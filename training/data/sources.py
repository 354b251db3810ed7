"""Reads files, folders, globs and data sets of the Hugging Face hub as one stream of documents.

The stream is the same each time it is read, so that a killed prepare can continue: folders are walked in the order of
names, with one folder in memory at a time.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from training.data.readers import Document, Reading, SourceError, read

__all__ = ["Corpus", "Document", "Reading", "SourceError", "corpus"]

# The files of a folder that are read. A file given by its name or by a glob is read whatever its suffix.
SUFFIXES = (".jsonl", ".md", ".ndjson", ".parquet", ".py", ".txt")


@dataclass(frozen=True)
class Facts:
    """What is known of a source without reading its files."""

    files: int = 0
    bytes: int = 0
    newest: int = 0  # latest modification time, ns
    names: str = ""  # checksum over names and sizes
    times: str = ""  # checksum over paths, sizes and modification times


class Source(Protocol):
    @property
    def argument(self) -> str: ...

    def facts(self) -> Facts: ...

    def documents(self, reading: Reading) -> Iterator[Document]: ...


@dataclass(frozen=True)
class Files:
    argument: str

    def paths(self) -> Iterator[Path]:
        path = Path(self.argument)
        if path.is_dir():
            yield from walk(path)
        elif path.exists() or not glob.has_magic(self.argument):
            yield path
        else:
            for name in sorted(glob.glob(self.argument, recursive=True)):  # noqa: PTH207  Path's needs a folder
                if not Path(name).is_dir():
                    yield Path(name)

    def facts(self) -> Facts:
        files = size = newest = 0
        names, times = hashlib.sha256(), hashlib.sha256()
        for path in self.paths():
            try:
                status = path.stat()
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from error
            files, size, newest = files + 1, size + status.st_size, max(newest, status.st_mtime_ns)
            # relative to the argument, so that a moved corpus counts as the same
            name = os.path.relpath(path, self.argument) if Path(self.argument).is_dir() else path.name
            names.update(f"{name}\0{status.st_size}\0".encode("utf-8", "surrogateescape"))
            times.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
        if not files:
            nothing = f"no {', '.join(SUFFIXES)} in this folder" if Path(self.argument).is_dir() else "no file matches"
            raise SourceError(f"{self.argument}: {nothing}")
        return Facts(files, size, newest, names.hexdigest(), times.hexdigest())

    def documents(self, reading: Reading) -> Iterator[Document]:
        for path in self.paths():
            yield from read(path, reading)


def walk(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):  # following a link to a parent folder would never end
            yield from walk(Path(entry.path))
        elif entry.name.lower().endswith(SUFFIXES) and not entry.is_dir():
            yield Path(entry.path)


@dataclass(frozen=True)
class Corpus:
    sources: Sequence[Source]
    reading: Reading
    facts: Facts
    """The facts when the corpus was opened."""

    def documents(self) -> Iterator[Document]:
        self.reading.skipped.count, self.reading.skipped.first = 0, ""
        for source in self.sources:
            for document in source.documents(self.reading):
                if document.text:
                    yield document

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
        }


def look(sources: Sequence[Source]) -> Facts:
    """The facts of all sources together."""
    each = [source.facts() for source in sources]
    return Facts(
        sum(facts.files for facts in each),
        sum(facts.bytes for facts in each),
        max(facts.newest for facts in each),
        hashlib.sha256("".join(facts.names for facts in each).encode()).hexdigest(),
        hashlib.sha256("".join(facts.times for facts in each).encode()).hexdigest(),
    )


def corpus(
    arguments: Sequence[str],
    *,
    text_key: str = "text",
    invalid: str = "stop",
    split: str = "train",
    revision: str = "",
    stream: bool = False,
) -> Corpus:
    """Open the sources that the arguments name; SourceError for one that does not exist."""
    sources: list[Source] = []
    for argument in arguments:
        if argument.startswith("hf:"):
            from training.data.hub import HubSource

            sources.append(HubSource(argument, split, revision, stream))
        else:
            sources.append(Files(argument))
    if not sources:
        raise SourceError("no source: name a file, a folder, a glob or hf:NAME")
    return Corpus(sources, Reading(text_key, invalid), look(sources))
