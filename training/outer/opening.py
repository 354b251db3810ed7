"""Whether a job is trained by several clusters, and the outer state that this one begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import safetensors.torch

from training.beginning import Beginning
from training.checkpoint.state import Saved, identity
from training.data.token_set import TokenSet
from training.job import Job
from training.keys import JobError
from training.outer.clusters import FILE, Clusters
from training.outer.state import OuterState, flat
from training.parallel.ranks import Ranks

NEEDS = 16  # bytes a parameter that the outer optimizer takes on each rank


def opened(
    job: Job,
    run: Path,
    begun: Beginning,
    ranks: Ranks,
    saved: Saved | None,
    data: TokenSet,
    beat: Callable[[], None],
    stop: Callable[[], bool],
) -> Clusters | None:
    """The job's other clusters; None if it is trained by one alone. JobError for what cannot be trained by several."""
    if not job.outer.exchange:
        if saved and "outer" in saved.state:
            raise JobError("outer.exchange = not given; allowed: the one with which this run's clusters have trained")
        return None
    if begun.parallel.calls_together:
        few = f"a model of which each rank has room for all, and {NEEDS} bytes a parameter more"
        raise JobError(f"outer.exchange = {job.outer.exchange}: the model is in shards (fsdp); allowed: {few}")
    own = _loaded(saved, ranks, job.outer.cluster) if saved else OuterState.first(flat(begun.state.model))
    return Clusters(job, begun.state, ranks, own, run=run, data=identity(data), beat=beat, stop=stop)


def _loaded(saved: Saved, ranks: Ranks, own: int) -> OuterState:
    """The state in a checkpoint. JobError if the run was begun without other clusters, or by another one."""
    if "outer" not in saved.state:
        raise JobError("outer.exchange: this run was begun by one cluster alone; allowed: none")
    if (cluster := saved.state["outer"]["cluster"]) != own:
        raise JobError(f"outer.cluster = {own}; allowed: {cluster}, as in this run's checkpoints")
    raw = (saved.folder / FILE).read_bytes() if saved.folder else b""
    tensors = safetensors.torch.load(ranks.broadcast_bytes(raw, saved.source) if saved.send else raw)
    return OuterState(rounds=saved.state["outer"]["rounds"], **tensors)
