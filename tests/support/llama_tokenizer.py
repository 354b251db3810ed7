"""A small vocabulary of Llama's kind: the parts that Llama 2's tokenizer.json has, and merges of a few words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

TEXTS = ("the cat sat on the mat, and the dog sat on the log", "a cat is not a dog", "def main() -> None:")


def write(path: Path, texts: Iterable[str] = TEXTS, size: int = 330) -> Path:
    """Train it and write its tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    special = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][: len(special)]  # the bytes are no special tokens in Llama's
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path
