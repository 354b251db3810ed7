"""Where streamed text is: the files of a folder, a bucket or a data set of the Hugging Face hub, and their bytes.

    hf:allenai/c4:en            a data set of the hub; `datasets` says which files a split has, at a pinned revision
    s3://BUCKET/FOLDER          a bucket, as training.store.bucket opens it; likewise abfs:// and file://
    /data/c4                    a folder

A folder or a bucket is read in C4's form: .json, .jsonl and .ndjson, each also with .gz, with an object a line, and
.parquet. A file whose name or folder says `validation`, `valid` or `val` is validation text, `test` is not read; every
other file is for training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

from training.data.readers import SourceError
from training.data.sources import first_line
from training.store import bucket
from training.store.bucket import BucketFolder, StoreError

HUB = "hf:"
SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz", ".parquet")
_ABOUT = ("dataset_infos.json", "dataset_info.json")  # beside a data set of `datasets`, not text
_VALIDATION = re.compile(r"(^|[^a-z])(validation|valid|val)([^a-z]|$)")
_TEST = re.compile(r"(^|[^a-z])test([^a-z]|$)")


@dataclass(frozen=True)
class StreamFile:
    """A file of a source, as it was when the source was listed."""

    name: str  # in its source
    size: int  # bytes


@dataclass(frozen=True)
class Listing:
    """The files of a source, as they were when it was prepared."""

    train: tuple[StreamFile, ...]
    validation: tuple[StreamFile, ...]


class Source(Protocol):
    """Where text comes from. `read` and `size` are called from several threads, and may fail: `Fetcher` tries again."""

    @property
    def word(self) -> str:
        """The source, as errors name it."""

    def list(self) -> Listing:
        """The files; SourceError if there are none to train on."""

    def read(self, name: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file, or fewer if it ends before. Any library's exception."""

    def size(self, name: str) -> int | None:
        """A file's size now, in bytes; None if it cannot change."""


def open_source(word: str) -> Source:
    """The source that data.source names. SourceError."""
    if word.startswith(HUB):
        return HubFiles(word)
    try:
        return FolderFiles(word, bucket.open_folder(word if "://" in word else f"file://{word}"))
    except StoreError as error:
        raise SourceError(str(error)) from None


@dataclass(frozen=True)
class FolderFiles:
    """The files of a folder or of a bucket, at any depth."""

    word: str
    folder: BucketFolder

    def list(self) -> Listing:
        try:
            with bucket.plain_errors(self.word):
                found = self.folder.below()
        except StoreError as error:
            raise SourceError(str(error)) from None
        files = [StreamFile(name, size) for name, size in sorted(found.items()) if _is_text(name) and size]
        if not files:
            raise SourceError(f"{self.word}: no {', '.join(SUFFIXES)} there")
        train, validation = (tuple(file for file in files if split(file.name) == want) for want in ("train", "val"))
        return _checked(self.word, train, validation)

    def read(self, name: str, start: int, end: int) -> bytes:
        data = self.folder.read(name, start, end)
        if data is None:
            raise FileNotFoundError(f"{name} is not there any more")
        return data

    def size(self, name: str) -> int | None:
        return self.folder.size(name)


@dataclass
class HubFiles:
    """A split's files of a data set of the hub, hf:NAME[:CONFIG], at the revision that `list` finds."""

    word: str
    _fs: Any = None

    def list(self) -> Listing:
        try:
            import datasets
        except ImportError as error:
            raise SourceError(f"{self.word}: needs the package datasets: pip install datasets") from error
        name, _, config = self.word.removeprefix(HUB).partition(":")
        datasets.disable_progress_bars()
        try:
            splits = datasets.load_dataset_builder(name, config or None).config.data_files or {}
            train = self._files(splits.get("train", ()))
            validation = self._files(splits.get("validation", ()))
        except Exception as error:  # its back-ends raise exceptions of many classes
            raise SourceError(f"{self.word}: {first_line(error)}") from error
        return _checked(self.word, train, validation)

    def read(self, name: str, start: int, end: int) -> bytes:
        # Without fsspec's cache, which would read ahead by itself and read that again.
        with self._hub().open(name, "rb", cache_type="none") as file:
            file.seek(start)
            return bytes(file.read(end - start))

    def size(self, name: str) -> int | None:
        return None  # a revision's files do not change

    def _files(self, urls: Iterable[str]) -> tuple[StreamFile, ...]:
        names = [str(url).removeprefix("hf://") for url in urls if _is_text(str(url))]
        return tuple(StreamFile(name, int(self._hub().info(name)["size"])) for name in names)

    def _hub(self) -> Any:
        if self._fs is None:
            import fsspec

            self._fs = fsspec.filesystem("hf", skip_instance_cache=True)
        return self._fs


def split(name: str) -> str:
    """The split of a file of a folder, by its path: train, val, or test."""
    if _VALIDATION.search(name.lower()):
        return "val"
    return "test" if _TEST.search(name.lower()) else "train"


def kind(name: str) -> str:
    """The last suffix but .gz: .json, .jsonl, .ndjson or .parquet."""
    return PurePosixPath(name.lower().removesuffix(".gz")).suffix


def _is_text(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)
    return name.lower().endswith(SUFFIXES) and not hidden and path.name not in _ABOUT


def _checked(word: str, train: tuple[StreamFile, ...], validation: tuple[StreamFile, ...]) -> Listing:
    if not train:
        raise SourceError(f"{word}: no file to train on: {', '.join(SUFFIXES)} outside of validation and test")
    return Listing(train, validation)
