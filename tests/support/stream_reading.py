"""What prepares and reads a stream as a job does, without ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
