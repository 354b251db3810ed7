"""What a bootstrap writes on a node: its progress, and the record that it is ready or has failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

READY: dict[str, Any] = {
    "node": "node1",
    "mode": "node",
    "profile": "native",
    "versions": {"torch": "2.13.0"},
    "cpu": {"cores": 2, "amx": False, "avx512_bf16": True},
}
FAILED: dict[str, Any] = {
    "node": "node1",
    "mode": "node",
    "step": "torch",
    "reason": "no wheel for torch 2.13.0",
    "log": ["looking for torch", "ERROR: none found"],
}


def state(root: Path) -> Path:
    folder = root / "var/lib/trainyard"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def put(path: Path, record: object) -> None:
    """As the bootstrap does: whole or not at all."""
    path.with_suffix(".new").write_text(json.dumps(record, indent=1))
    path.with_suffix(".new").replace(path)


def event(root: Path, step: str, what: str, seconds: float | None = None) -> None:
    extra = {} if seconds is None else {"seconds": seconds}
    with (state(root) / "progress.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1.0, "step": step, "state": what, **extra}) + "\n")
