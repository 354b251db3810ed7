"""Llama's kind of vocabulary, which SentencePiece made, from Hugging Face's tokenizer.json.

Its words are not cut before they are merged, a space is written as U+2581, and a character that has no token becomes
its bytes, `<0xE2>` and so on; tiktoken cannot make these tokens, the package tokenizers can. As published, every text
begins with one such space. Documents are joined by `</s>` and `<s>`, so each but a split's first is enclosed in both;
the separator is `</s>`. What looks like these in a text is text. Passages of a document of more than a million
characters begin with that space, too.

SentencePiece's own file, tokenizer.model, is not read: the tokenizer.json that is published beside it has the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.data.vocabulary import BYTES, Vocabulary, VocabularyError
from training.manifest import SEPARATOR, TOKENIZER

BEGIN, END = "<s>", "</s>"
SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class LlamaEncoding:
    """What the trainer uses of tiktoken.Encoding, by the package tokenizers."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name, self.tokenizer = name, tokenizer
        self.begin, self.end = (tokenizer.token_to_id(token) for token in (BEGIN, END))
        self.n_vocab = _size(tokenizer)

    def encode_to_numpy(
        self, text: str, *, allowed_special: Set[str] = frozenset(), disallowed_special: Collection[str] = ()
    ) -> npt.NDArray[Any]:
        """The tokens, uint32. If SEPARATOR is allowed, it is where a document ends and the next one begins."""
        parts = text.split(SEPARATOR) if SEPARATOR in allowed_special else [text]
        between: list[int] = []
        tokens: list[int] = []
        for encoded in self.tokenizer.encode_batch(parts, add_special_tokens=False):
            tokens += between + encoded.ids
            between = [self.end, self.begin]
        return np.array(tokens, dtype=np.uint32)

    def encode_single_token(self, text: str) -> int:
        """The number of a token; of SEPARATOR that of `</s>`. KeyError for none."""
        number = self.tokenizer.token_to_id(END if text == SEPARATOR else text)
        if number is None:
            raise KeyError(text)
        return int(number)

    def decode_single_token_bytes(self, token: int) -> bytes:
        """The text of a token in UTF-8, or its byte. KeyError for none."""
        text = self.tokenizer.id_to_token(token)
        if text is None:
            raise KeyError(token)
        byte = _BYTE.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()


@dataclass(frozen=True)
class LlamaVocabulary(Vocabulary):
    """`ranks` and `pattern` are empty: it has merges of its own, in `content`, the file's text."""

    content: str = ""
    file = TOKENIZER

    @property
    def size(self) -> int:
        return int(self.encoding().n_vocab)

    def encoding(self) -> LlamaEncoding:
        """The package tokenizers' object; VocabularyError without the package."""
        return LlamaEncoding(self.name, _tokenizer(self.content, self.name))

    def digest(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()

    def text(self) -> str:
        return self.content


def parse(raw: bytes, path: Path) -> LlamaVocabulary:
    """The vocabulary of a tokenizer.json; VocabularyError unless it is of Llama's kind."""
    try:
        content = raw.decode()
        model = json.loads(content)["model"]
        kind, fallback = model["type"], model["byte_fallback"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise VocabularyError(f"{path}: not a tokenizer.json of Llama's kind (a BPE with byte_fallback)") from None
    if kind != "BPE" or fallback is not True:
        found = f"{kind} with{'' if fallback else 'out'} byte_fallback"
        raise VocabularyError(f"{path}: {found}; allowed: a BPE with byte_fallback, as Llama 2's, or a rank file")
    tokenizer = _tokenizer(content, str(path))
    needed = [BEGIN, END, *(f"<0x{byte:02X}>" for byte in range(BYTES))]
    if absent := [token for token in needed if tokenizer.token_to_id(token) is None]:
        raise VocabularyError(f"{path}: no token {absent[0]}; allowed: one with {BEGIN}, {END} and all bytes")
    name = path.parent.name if path.name == TOKENIZER else path.stem
    return LlamaVocabulary(name or "llama", {}, "", tokenizer.token_to_id(END), content)


def _tokenizer(content: str, where: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise VocabularyError(
            f"{where}: a tokenizer.json needs the package tokenizers: pip install tokenizers"
        ) from error
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # noqa: BLE001 (the package raises plain Exception)
        raise VocabularyError(f"{where}: {(str(error).splitlines() or [''])[0]}") from None
    tokenizer.encode_special_tokens = True  # as text
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _size(tokenizer: Any) -> int:
    """One more than the largest token."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
