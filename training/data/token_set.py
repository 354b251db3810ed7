"""A token set: train.bin and val.bin (little-endian uint16 or uint32, no header: nanoGPT's layout) and a manifest.

python -m training.data.token_set DIR           print what is in it and verify every checksum
python -m training.data.token_set DIR --gzip    bits per byte of gzip on the validation text, a model's baseline, as
                                                {"gzip -1": 2.53, "gzip -9": 2.08}
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
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
    """An open token set. Both splits are little-endian uint16 or uint32 of one dimension."""

    path: Path
    manifest: dict[str, Any]
    train: Array  # memory-mapped, read-only: the set may be larger than the memory
    val: Array

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, the separator included; a model may be padded to more."""
        return int(self.manifest["vocab_size"])

    @property
    def encoding(self) -> dict[str, Any]:
        """The manifest's entry, for `training.data.tokenizer.load`."""
        return dict(self.manifest["encoding"])

    @property
    def separator(self) -> int:
        """The token between documents; nanoGPT's bare files, which do not name it, have GPT-2's."""
        return int(self.encoding.get("special", {}).get(manifest.SEPARATOR, manifest.GPT2_VOCABULARY - 1))

    def bytes_per_token(self, split: str) -> float | None:
        """Mean UTF-8 bytes of text per token of a split; None if the manifest does not have them."""
        facts = self.manifest["splits"][split]
        return facts["bytes_of_text"] / facts["tokens"] if facts.get("bytes_of_text") and facts["tokens"] else None


def open(folder: str | Path, *, verify: bool = False) -> TokenSet:
    """Open a token set. Manifest and file sizes are always checked, checksums only with `verify`. Raises TokenError."""
    folder = Path(folder)
    content = manifest.read(folder)
    if verify and content["format"]:
        manifest.verify(folder, manifest.listed(content, str(folder)))
    train, val = (_mapped(folder, content, split) for split in manifest.SPLITS)
    if verify and not content["format"]:
        _check_range(folder, content, {"train": train, "val": val})
    return TokenSet(folder, content, train, val)


def _mapped(folder: Path, content: Mapping[str, Any], split: str) -> Array:
    dtype, facts = little_endian(content["dtype"]), content["splits"][split]
    if not facts["tokens"]:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    try:
        return np.memmap(folder / facts["file"], dtype=dtype, mode="r", shape=(facts["tokens"],))
    except OSError as error:
        raise TokenError(f"{folder / facts['file']}: {error.strerror}") from error


def _check_range(folder: Path, content: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """TokenError if a token is beyond the vocabulary. Without checksums nothing more can be verified."""
    vocabulary = f"{content['encoding']['name']}'s vocabulary of {content['vocab_size']}"
    for split, array in arrays.items():
        for start in range(0, len(array), CHUNK):
            if (largest := int(array[start : start + CHUNK].max())) >= content["vocab_size"]:
                raise TokenError(f"{folder / split}.bin: token {largest} is beyond {vocabulary}")


def little_endian(dtype: str) -> str:
    """numpy's name of a manifest's dtype as the files have it: <u2 for uint16, <u4 for uint32."""
    return f"<u{manifest.ITEM_SIZE[dtype]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify a token set, or print gzip's bits per byte. Exit code: 0, or 2 if it is damaged or none."""
    parser = argparse.ArgumentParser(prog="python -m training.data.token_set", description="Verify a token set.")
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--gzip", action="store_true", help="print gzip's bits per byte of the validation text")
    args = parser.parse_args(arguments)
    try:
        tokens = open(args.folder, verify=not args.gzip)
    except TokenError as error:
        print(f"tokens: {error}", file=sys.stderr)
        return 2
    if args.gzip:
        print(json.dumps(gzip_bits_per_byte(tokens)))
        return 0
    for split in manifest.SPLITS:
        facts = tokens.manifest["splits"][split]
        print(f"{split:5} {facts['tokens']:>15,} tokens {facts.get('documents', 0):>12,} documents")
    state = "verified" if tokens.manifest["format"] else "sizes and range only: a bare folder has no checksums"
    print(f"{tokens.encoding['name']}, a vocabulary of {tokens.vocab_size}, {tokens.manifest['dtype']}; {state}")
    return 0


def gzip_bits_per_byte(tokens: TokenSet) -> dict[str, float]:
    """Bits per byte of gzip on the validation text, at its lowest and its highest level."""
    from training.data import tokenizer  # needs tiktoken

    encoding = tokenizer.load(tokens.encoding, tokens.path)
    text = tokenizer.decode(encoding, (int(token) for token in tokens.val)).encode()
    # 31: gzip's own format, header and trailer
    return {f"gzip -{level}": 8 * len(zlib.compress(text, level, wbits=31)) / len(text) for level in (1, 9)}


if __name__ == "__main__":
    raise SystemExit(main())
