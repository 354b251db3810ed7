"""A vocabulary in the files of Hugging Face's tokenizers: vocab.json, merges.txt and tokenizer_config.json.

Tokens are spelled in characters there: a printable byte as itself, any other as a character from 256 up. The merges are
worked out from the ranks: each token's last merge is of the two parts that the merges before it leave. A vocabulary of
Llama's kind is one file, tokenizer.json, as it was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from training.data.llama_vocabulary import BEGIN, END, LlamaVocabulary
from training.data.vocabulary import PATTERNS, UNPRINTABLE, Vocabulary, VocabularyError
from training.manifest import SEPARATOR, TOKENIZER
from training.models.base import Model

_PLAIN = {"rstrip": False, "single_word": False, "normalized": False, "special": True}
_SPELLED = {byte: chr(256 + number) for number, byte in enumerate(UNPRINTABLE)}


def tokens_of(vocabulary: Vocabulary) -> dict[str, int]:
    """The tokens as Hugging Face spells them, with their numbers; the separator too."""
    spelled = {_spelled(token): number for token, number in vocabulary.ranks.items()}
    return {**spelled, SEPARATOR: vocabulary.separator}


def special(vocabulary: Vocabulary) -> dict[str, int]:
    """The entries of config.json for the tokens between documents. transformers has Llama's and GPT-2's by default, so
    that it would end a text at any other vocabulary's token with that number."""
    begin = vocabulary.encoding().begin if isinstance(vocabulary, LlamaVocabulary) else vocabulary.separator
    return {"bos_token_id": begin, "eos_token_id": vocabulary.separator}


def write(model: type[Model], shape: Any, vocabulary: Vocabulary, folder: Path) -> bool:
    """Write the tokenizer of the model's weights into a folder, if Hugging Face has one for them; returns whether.
    VocabularyError if Hugging Face's class for the model, which has GPT-2's pattern, cannot make these tokens."""
    if model.hugging_face_tokenizer:
        _write_byte_level(model, shape, vocabulary, folder)
    elif isinstance(vocabulary, LlamaVocabulary):
        (folder / TOKENIZER).write_text(vocabulary.text(), encoding="utf-8")
        names = {"bos_token": BEGIN, "eos_token": END}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.block_size, **names}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return bool(model.hugging_face_tokenizer) or isinstance(vocabulary, LlamaVocabulary)


def _write_byte_level(model: type[Model], shape: Any, vocabulary: Vocabulary, folder: Path) -> None:
    if vocabulary.pattern != PATTERNS["gpt2"]:
        raise VocabularyError(f"{vocabulary.name}: {model.hugging_face_tokenizer} has GPT-2's pattern, not this one's")
    lines = ["#version: 0.2", *(f"{_spelled(left)} {_spelled(right)}" for left, right in merges(vocabulary.ranks))]
    known = model.hugging_face_tokens(tokens_of(vocabulary), shape)
    settings: dict[str, Any] = {"tokenizer_class": model.hugging_face_tokenizer, "model_max_length": shape.block_size}
    # A space before a mask belongs to the token that is put there, in the published tokenizer and in training.sample.
    settings["mask_token"] = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, **_PLAIN}
    (folder / "vocab.json").write_text(json.dumps(known, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The two parts of each token of several bytes, in the order of the ranks. VocabularyError if no merges make it."""
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            at = joined.index(min(joined))
            if joined[at] >= rank:
                raise VocabularyError(f"token {rank}: its parts {parts} are not joined by tokens of lower ranks")
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]


def _spelled(token: bytes) -> str:
    return "".join(_SPELLED.get(byte, chr(byte)) for byte in token)
