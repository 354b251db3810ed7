"""Read a data set of the Hugging Face hub, `hf:NAME` or `hf:NAME:CONFIG`, with the `datasets` library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from training.data.readers import Document, Reading, SourceError, column_text, row
from training.data.sources import Facts

ROWS = 256  # read at a time


@dataclass
class HubSource:
    argument: str
    split: str = "train"
    revision: str = ""
    stream: bool = False
    """Read over the network instead of downloading all of it first."""

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
        data = self.data
        rows = 0 if self.stream else len(data)
        size = 0 if self.stream else int(data.data.nbytes)
        names = hashlib.sha256(repr((self.argument, self.split, self.revision, rows)).encode()).hexdigest()
        return Facts(files=1, bytes=size, names=names, times=names)

    def documents(self, reading: Reading) -> Iterator[Document]:
        data, done = self.data, 0
        if data.column_names and reading.text_key not in data.column_names:
            raise SourceError(f'{self.argument}: no column "{reading.text_key}" (--text-key names another)')
        each = 0 if self.stream else int(data.data.nbytes) // max(1, len(data))
        try:
            for batch in data.select_columns([reading.text_key]).iter(batch_size=ROWS):
                for value in batch[reading.text_key]:
                    done += 1
                    where = f"{self.argument}: row {done}"
                    yield from row(column_text(value, where, reading), each, where, reading)
        except (SourceError, GeneratorExit):
            raise
        except Exception as error:  # a broken connection can raise any library's exception
            raise SourceError(f"{self.argument}: after {done} rows: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
