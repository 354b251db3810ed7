"""An image in a local cache, without a bake."""

from __future__ import annotations

import json
from pathlib import Path

from infra.clouds.local import ids

IMAGE = "0123456789abcdef"


def bake(home: Path, name: str, base_key: str = "base1") -> None:
    """An image in the cache, as a bake leaves it."""
    (home / "images" / name / "layer").mkdir(parents=True)
    (home / "base" / base_key / "rootfs").mkdir(parents=True, exist_ok=True)
    known = {"base": base_key, "profile": "native", "collectives": "gloo", "versions": {"torch": "2.13.0"}}
    known["ids"] = ids.RANGE
    (home / "images" / name / "image.json").write_text(json.dumps(known))
