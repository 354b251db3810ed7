"""Token sets made of tokens that a test or a bench has in memory; training.data.prepare makes them of text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from training import manifest
from training.data import token_set
from training.data.token_set import TokenSet

Tokens: TypeAlias = Sequence[int] | npt.NDArray[Any]


def write(
    folder: Path,
    *,
    train: Tokens,
    val: Tokens,
    vocab_size: int,
    encoding: Mapping[str, Any],
    text_bytes: Mapping[str, int] | None = None,
) -> TokenSet:
    """Write a token set, whatever its splits are, and open it."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = manifest.dtype_for(vocab_size)
    splits: dict[str, Any] = {}
    for split, tokens in (("train", train), ("val", val)):
        assert not len(tokens) or 0 <= min(tokens) <= max(tokens) < vocab_size
        data = np.asarray(tokens, dtype=token_set.little_endian(dtype)).tobytes()
        (folder / f"{split}.bin").write_bytes(data)
        splits[split] = {
            "file": f"{split}.bin",
            "tokens": len(tokens),
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes_of_text": (text_bytes or {}).get(split, 0),
            "documents": 0,
        }
    content = {"format": manifest.FORMAT, "dtype": dtype, "vocab_size": vocab_size, "encoding": dict(encoding)}
    content |= {"splits": splits, "source": {"arguments": []}}
    manifest.publish(folder / manifest.NAME, manifest.render(content))
    return token_set.open(folder)
