"""Text in the form of C4: files of gzipped JSON lines, as the published data set has them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from small_corpus import words


def documents(seed: int, count: int) -> list[str]:
    """Texts that tell which they are."""
    draw = random.Random(seed)
    return [f"{seed}.{number} {words(draw, draw.randint(1, 120))}" for number in range(count)]


def lines(texts: list[str]) -> bytes:
    """JSON lines with C4's keys."""
    stamp = {"timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/"}
    return b"".join(json.dumps({"text": text, **stamp}).encode() + b"\n" for text in texts)


def write(folder: Path, *, files: int = 3, rows: int = 60, validation: int = 40) -> list[str]:
    """The files of a small C4; returns the texts of its train split in the files' order."""
    (folder / "en").mkdir(parents=True)
    all_texts = []
    for number in range(files):
        texts = documents(number, rows)
        all_texts += texts
        name = f"c4-train.{number:05d}-of-{files:05d}.json.gz"
        (folder / "en" / name).write_bytes(gzip.compress(lines(texts), mtime=0))
    if validation:
        packed = gzip.compress(lines(documents(99, validation)), mtime=0)
        (folder / "en" / "c4-validation.00000-of-00001.json.gz").write_bytes(packed)
    return all_texts
