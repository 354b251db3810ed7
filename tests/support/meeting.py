"""Clusters that train one job together: groups of real ranks that share nothing but a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from bucket_servers import Server
from gloo_ranks import Group, lines, start
from safetensors.torch import load_file

KEYS = ("outer.clusters=2", "outer.every=2", "outer.overlap=0", "outer.wait=60")


def cluster(
    job: Path,
    bucket: Path | Server,
    run: Path,
    number: int,
    *more: str,
    size: int = 1,
    resume: bool = False,
) -> Group:
    """Start cluster `number` of a job; `more` are overrides. `bucket`: a folder, or a server with a bucket."""
    url = f"file://{bucket}" if isinstance(bucket, Path) else f"{bucket.url}/meeting"
    keys = [*KEYS, f"outer.exchange={url}", f"outer.cluster={number}", *more]
    environment = {} if isinstance(bucket, Path) else bucket.environment
    return start(job, run, size, [*keys, *(["--resume"] if resume else [])], environment=environment)


def parameters(run: Path, step: int = 8) -> dict[str, torch.Tensor]:
    """Of a run's checkpoint."""
    return load_file(run / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


def outer_state(run: Path, step: int = 8) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:06d}" / "outer.safetensors")


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], but: Sequence[str] = ()) -> bool:
    names = set(one) - set(but)
    return names == set(other) - set(but) and all(torch.equal(one[name], other[name]) for name in names)


def rounds(run: Path) -> dict[int, list[int]]:
    """The clusters that took part in each round, by what the run's metrics say."""
    found = [line["outer"] for line in lines(run) if "outer" in line]
    return {each["round"]: each["clusters"] for each in found}


def facts(run: Path) -> list[dict[str, Any]]:
    return [line["outer"] for line in lines(run) if "outer" in line]
