"""Files altered as a disk, a torn write or a hand might."""

from __future__ import annotations

import random
from pathlib import Path


def mutate(path: Path, seed: int) -> str:
    """Alters one file as a disk, a torn write or a hand might."""
    choose = random.Random(seed)
    raw = bytearray(path.read_bytes())
    at = choose.randrange(len(raw))
    kind = choose.choice(["bit", "byte", "cut", "longer", "gone", "zeros", "swap", "empty"])
    if kind == "bit":
        raw[at] ^= 1 << choose.randrange(8)
    elif kind == "byte":
        raw[at] = (raw[at] + choose.randrange(1, 256)) % 256
    elif kind == "cut":
        del raw[at:]
    elif kind == "longer":
        raw += b"\0"
    elif kind == "zeros":
        raw = bytearray(len(raw))
    elif kind == "swap":
        raw[at] ^= 0xFF
        raw[at - 1] ^= 0xFF
    elif kind == "empty":
        raw.clear()
    path.write_bytes(raw)
    if kind == "gone":
        path.unlink()
    return kind
