"""A token set: train.bin and val.bin (little-endian uint16 or uint32, no header: nanoGPT's layout) and a manifest.

python -m training.data.token_set DIR      print what is in it and verify every checksum
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from training import manifest
from training.manifest import TokenError

Array: TypeAlias = npt.NDArray[Any]
CHUNK = 1 << 22  # tokens checked at a time


@dataclass(frozen=True)
class TokenSet:
    path: Path
    manifest: dict[str, Any]
    train: Array
    """Memory-mapped, read-only: the set may be larger than the memory."""
    val: Array

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocab_size"])

    @property
    def encoding(self) -> dict[str, Any]:
        """The manifest's entry, for `training.data.tokenizer.load`."""
        return dict(self.manifest["encoding"])

    def bytes_per_token(self, split: str) -> float | None:
        """Mean UTF-8 bytes of text per token of a split; None if the manifest does not have them."""
        facts = self.manifest["splits"][split]
        return facts["bytes_of_text"] / facts["tokens"] if facts.get("bytes_of_text") and facts["tokens"] else None


def open(folder: str | Path, *, verify: bool = False) -> TokenSet:
    """Open a token set. Manifest and file sizes are always checked, checksums only with `verify`. Raises TokenError."""
    folder = Path(folder)
    content = manifest.read(folder)
    if verify:
        manifest.verify(folder, content)
    train, val = (mapped(folder, content, split) for split in manifest.SPLITS)
    if verify and content["format"] == 0:
        in_range(folder, content, {"train": train, "val": val})
    return TokenSet(folder, content, train, val)


def mapped(folder: Path, content: Mapping[str, Any], split: str) -> Array:
    dtype = little_endian(content["dtype"])
    facts = content["splits"][split]
    if not facts["tokens"]:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    try:
        return np.memmap(folder / facts["file"], dtype=dtype, mode="r", shape=(facts["tokens"],))
    except OSError as error:
        raise TokenError(f"{folder / facts['file']}: {error.strerror}") from error


def in_range(folder: Path, content: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """TokenError if a token is beyond the vocabulary. Without checksums nothing more can be verified."""
    for split, array in arrays.items():
        for start in range(0, len(array), CHUNK):
            largest = int(array[start : start + CHUNK].max())
            if largest >= content["vocab_size"]:
                raise TokenError(
                    f"{folder / content['splits'][split]['file']}: token {largest} is beyond "
                    f"{content['encoding']['name']}'s vocabulary of {content['vocab_size']}"
                )


def little_endian(dtype: str) -> str:
    return f"<u{manifest.ITEM_SIZE[dtype]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.data.token_set", description="Verify a token set.")
    parser.add_argument("folder", metavar="DIR", type=Path)
    try:
        tokens = open(parser.parse_args(arguments).folder, verify=True)
    except TokenError as error:
        print(f"tokens: {error}", file=sys.stderr)
        return 2
    for split in manifest.SPLITS:
        facts = tokens.manifest["splits"][split]
        print(f"{split:5} {facts['tokens']:>15,} tokens {facts.get('documents', 0):>12,} documents")
    state = "verified" if tokens.manifest["format"] else "sizes and range only: a bare folder has no checksums"
    print(f"{tokens.encoding['name']}, a vocabulary of {tokens.vocab_size}, {tokens.manifest['dtype']}; {state}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
