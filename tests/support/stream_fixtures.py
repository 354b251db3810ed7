"""A small C4, the token set of a job that streams it, and what reads it without ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import c4_form
import pytest

from training.data import token_set
from training.data.stream import serve, stage
from training.data.stream.documents import Documents
from training.data.stream.fetch import Fetcher
from training.data.stream.listing import StreamListing
from training.data.stream.packed import Packed
from training.data.stream.source import open_source


def staged(folder: Path, source: object, *options: object) -> Path:
    """The token set of a streamed source, made as `fab prepare` does."""
    vocabulary = () if "--ranks" in options else ("--train-vocab", 320)
    words = ["--quiet", "--out", folder, *vocabulary, *options, source]
    assert stage.main([str(word) for word in words]) == 0
    return folder


def documents(folder: Path, *, seed: int = 5, shuffle: int = 16) -> Documents:
    """The documents of a staged source in the order of training."""
    listing = StreamListing.of(token_set.open(folder).manifest, str(folder))
    fetcher = Fetcher(open_source(listing.source), pause=0.01)
    return Documents(fetcher, listing.files, listing.reading, seed, shuffle, listing.held_out)


def packed(folder: Path, said: list[str] | None = None, **order: Any) -> Packed:
    """The same, encoded and packed."""
    say = (said if said is not None else []).append
    return Packed(documents(folder, **order), serve.encoders(token_set.open(folder), order.get("seed", 5)), say)


@pytest.fixture(scope="module")
def c4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in C4's form: three files of 60 documents, and a validation file."""
    folder = tmp_path_factory.mktemp("c4")
    c4_form.write(folder)
    return folder


@pytest.fixture(scope="module")
def streamed(c4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its token set: vocabulary, validation text, list of files."""
    return staged(tmp_path_factory.mktemp("streamed") / "set", c4)
