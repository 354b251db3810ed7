"""Encode and decode text with the encoding that a token set's manifest names."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    return vocabulary.Vocabulary(
        encoding["name"], found.ranks, found.pattern, encoding["special"][SEPARATOR]
    ).encoding()


def separator(encoding: tiktoken.Encoding) -> int:
    """The token between documents."""
    return int(encoding.encode_single_token(SEPARATOR))


def encode(encoding: tiktoken.Encoding, text: str) -> list[int]:
    """The tokens of a text. A separator in the text is encoded as text."""
    tokens: list[int] = to_array(encoding, [(text, False)]).tolist()
    return tokens


def to_array(encoding: tiktoken.Encoding, texts: Sequence[tuple[str, bool]]) -> Array:
    """The tokens of several (text, closes) in a row, uint32, with a separator after each text whose `closes` is True.

    The texts are joined by the separator, at which tiktoken splits, and encoded in one call: a call for each short
    document costs more than the encoding. A text that contains the separator is encoded by itself.
    """
    joined: list[str] = []
    arrays: list[Array] = []
    for text, closes in texts:
        if SEPARATOR in text or not closes:
            arrays += [encode_part(encoding, "".join(joined), {SEPARATOR}), encode_part(encoding, text, set())]
            joined = [SEPARATOR] if closes else []
        else:
            joined += [text, SEPARATOR]
    arrays.append(encode_part(encoding, "".join(joined), {SEPARATOR}))
    return np.concatenate(arrays)


def encode_part(encoding: tiktoken.Encoding, text: str, special: set[str]) -> Array:
    """The tokens of a text, uint32. A separator in it is one token if it is in `special`, else it is text."""
    try:
        return encoding.encode_to_numpy(text, allowed_special=special, disallowed_special=())
    except ValueError:  # nearly a million spaces in a row exceed a limit of the regex engine
        if len(text) <= SLICE:
            raise
        if special:  # split at the separators first
            parts = [encode_part(encoding, part, set()) for part in text.split(SEPARATOR)]
            end = np.array([separator(encoding)], dtype=np.uint32)
            return np.concatenate([array for part in parts for array in (part, end)][:-1])
        return np.concatenate(
            [encode_part(encoding, text[at : at + SLICE], special) for at in range(0, len(text), SLICE)]
        )


def stream(encoding: tiktoken.Encoding, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text as the tokens arrive. A character that spans several tokens is yielded with the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        try:
            raw = encoding.decode_single_token_bytes(token)
        except KeyError:  # a model may have more outputs than the vocabulary has tokens
            raw = "\ufffd".encode()
        piece = decoder.decode(raw)
        if piece:
            yield piece
    rest = decoder.decode(b"", final=True)
    if rest:
        yield rest


def decode(encoding: tiktoken.Encoding, tokens: Iterable[int]) -> str:
    """The text of the tokens."""
    return "".join(stream(encoding, tokens))
