"""What a common compressor needs for the validation text: a mark for a model's bits per byte.

python -m training.data.gzip_baseline DIR    ->  {"gzip -1": 2.53, "gzip -9": 2.08}
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from training.data import token_set, tokenizer

LEVELS = (1, 9)


def bits_per_byte(data: bytes, level: int) -> float:
    """Bits that gzip at this level needs for a byte of the data."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, 31)  # 31: gzip's own format, header and trailer
    return 8 * (len(compressor.compress(data)) + len(compressor.flush())) / len(data)


def baselines(folder: Path) -> dict[str, float]:
    """The marks of a token set's validation split; TokenError for a set that is not whole."""
    found = token_set.open(folder)
    encoding = tokenizer.load(found.encoding, folder)
    data = tokenizer.decode(encoding, (int(token) for token in found.val)).encode()
    return {f"gzip -{level}": bits_per_byte(data, level) for level in LEVELS}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.data.gzip_baseline", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a token set")
    try:
        print(json.dumps(baselines(parser.parse_args(arguments).folder)))
    except token_set.TokenError as error:
        print(f"marks: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
