"""Words that documents of tests are made of, and how tests prepare and read back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

from training.data import prepare, token_set, tokenizer

WORDS = ["def ", "return", "self", "()", "\n    ", "né ", "漢字", "don't ", "x", "0", "12345 ", "  ", "\t", "!?\n"]


def words(draw: random.Random, count: int) -> str:
    return "".join(draw.choices(WORDS, k=count))


def run(*arguments: Any) -> int:
    return prepare.main([str(argument) for argument in arguments])


def documents_of(opened: token_set.TokenSet, split: str) -> list[bytes]:
    """The split as text again, cut at the separators."""
    encoding = tokenizer.load(opened.encoding, opened.path)
    array = getattr(opened, split)
    ends = np.flatnonzero(array == tokenizer.separator(encoding))
    parts = np.split(array, ends + 1)
    assert isinstance(encoding, tiktoken.Encoding)
    assert not len(parts[-1])  # every document is closed
    return [encoding.decode_bytes(part[:-1].tolist()) for part in parts[:-1]]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
