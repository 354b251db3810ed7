"""Bits per byte of gzip on the validation text: a baseline for a model's.

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
from training.manifest import TokenError

LEVELS = (1, 9)


def bits_per_byte(data: bytes, level: int) -> float:
    """Bits per byte of the data, compressed by gzip at this level."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, 31)  # 31: gzip's own format, header and trailer
    return 8 * (len(compressor.compress(data)) + len(compressor.flush())) / len(data)


def baselines(folder: Path) -> dict[str, float]:
    """gzip's bits per byte on a token set's validation split, by level. TokenError for an invalid set."""
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
    except TokenError as error:
        print(f"gzip_baseline: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
