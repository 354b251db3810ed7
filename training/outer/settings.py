"""What clusters that train together must have in common: the first one puts it into the bucket, the others compare."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import training
from training.job import Job

_OF_EACH = {
    "model": {"init_from"},
    "train": {
        *("micro_batch", "eval_every", "eval_windows", "precision", "compile", "parallel", "replicas", "recompute"),
        *("threads", "timeout"),
    },
    "outer": {"exchange", "cluster", "names", "overlap", "wait", "keep"},
}
"""Keys that may differ between the clusters; all others of these sections are the same."""


def code() -> str:
    """A digest of the trainer's own code."""
    root = Path(training.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def shared(job: Job, data: str) -> dict[str, Any]:
    """What all clusters of a job have the same value of. `data` identifies the token set."""
    values = dataclasses.asdict(job)
    keys = {
        f"{section}.{name}": value
        for section, own in _OF_EACH.items()
        for name, value in values[section].items()
        if name not in own
    }
    return {**keys, "data.path": data, "the trainer's code": code()}
