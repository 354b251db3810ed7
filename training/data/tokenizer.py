"""Encode and decode text with the encoding that a token set's manifest names."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tiktoken

from training import manifest
from training.data import vocabulary
from training.data.vocabulary import SEPARATOR, VocabularyError

Array: TypeAlias = npt.NDArray[Any]

SLICE = 1 << 16  # characters


def load(encoding: Mapping[str, Any], folder: str | Path) -> tiktoken.Encoding:
    """The encoding of `manifest["encoding"]`, whose rank file, if it has one, is in `folder`. VocabularyError."""
    if "ranks" not in encoding:
        return vocabulary.named(encoding["name"]).encoding()
    path = Path(folder) / encoding["ranks"]
    found = vocabulary.read(path, encoding["pattern"])
    if manifest.checksum(path) != encoding["sha256"]:
        raise VocabularyError(f"{path}: not the rank file that the tokens were made with")
    return replace(found, name=encoding["name"], separator=encoding["special"][SEPARATOR]).encoding()


def separator(encoding: tiktoken.Encoding) -> int:
    """The token between documents."""
    return int(encoding.encode_single_token(SEPARATOR))


def encode(encoding: tiktoken.Encoding, text: str) -> list[int]:
    """The tokens of a text. A separator in the text is encoded as text."""
    return list(encode_part(encoding, text, set()).tolist())


def encode_part(encoding: tiktoken.Encoding, text: str, special: set[str]) -> Array:
    """The tokens of a text, uint32. A separator in it is one token if it is in `special`, else it is text."""
    try:
        return encoding.encode_to_numpy(text, allowed_special=special, disallowed_special=())
    except ValueError:  # nearly a million spaces in a row exceed a limit of the regex engine
        if len(text) <= SLICE:
            raise
    if special:  # split at the separators first
        end = np.array([separator(encoding)], dtype=np.uint32)
        parts = [array for part in text.split(SEPARATOR) for array in (encode_part(encoding, part, set()), end)][:-1]
    else:
        parts = [encode_part(encoding, text[at : at + SLICE], special) for at in range(0, len(text), SLICE)]
    return np.concatenate(parts)


def stream(encoding: tiktoken.Encoding, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text as the tokens arrive. A character that spans several tokens is yielded with the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        try:
            raw = encoding.decode_single_token_bytes(token)
        except KeyError:  # a model may have more outputs than the vocabulary has tokens
            raw = "\ufffd".encode()
        if piece := decoder.decode(raw):
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield rest


def decode(encoding: tiktoken.Encoding, tokens: Iterable[int]) -> str:
    """The text of the tokens."""
    return "".join(stream(encoding, tokens))
