"""The state of a run: creates it, loads it from a checkpoint on every rank, and collects it for a checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from training import optimizer as optimizers
from training.checkpoint import files as checkpoint
from training.checkpoint import weights
from training.checkpoint.incoming import Incoming, TensorSource
from training.checkpoint.reader import Part
from training.data.token_set import TokenSet
from training.data.vocabulary import VocabularyError
from training.job import Job
from training.keys import JobError
from training.manifest import STREAM
from training.models import architecture
from training.models.base import Model
from training.models.sharded_init import ShardedInit
from training.models.weight_files import WeightsError
from training.parallel import Parallelism
from training.parallel.ranks import Ranks
from training.parallel.shard import Shard, local


@dataclass
class TrainingState:
    """What a run is between two steps. A checkpoint is made from it, and loaded into it."""

    architecture: str
    model: Model
    optimizer: torch.optim.Optimizer
    step: int = 0  # optimizer steps that are done
    precision: str = "auto"  # the chosen precision; a resumed run keeps it
    compile: str = "auto"  # true or false once it is chosen whether to compile; a resumed run keeps it
    best: float = float("inf")  # lowest validation loss
    stream: dict[str, Any] | None = None  # of a text that is read while training: its position after `step`
    scaler: dict[str, Any] | None = None  # state of fp16's loss scaling, loaded when the scaler exists
    rows: dict[str, Tensor] = field(default_factory=dict)
    """Of a model in shards, until its parameters are: this rank's rows of their first values, by name."""
    rng: dict[str, Tensor] | None = None
    """States of this rank's random generators, loaded when everything else is set up."""


def outline(job: Job, data: TokenSet) -> Model:
    """The job's model on the meta device: its shape and its parameters' sizes, without their values."""
    cls = architecture(job.model.architecture)
    with torch.device("meta"):
        return cls(cls.shape_of(job.model, data.vocab_size), job.model.dropout)


def fresh(job: Job, data: TokenSet, device: torch.device, *, initialise: bool) -> TrainingState:
    """The state before the first step. JobError for weights in model.init_from that cannot be used; they are not read
    without `initialise`, where a checkpoint is loaded afterwards."""
    model = _initialised(job, data, load=initialise)
    model.to(device)
    return TrainingState(job.model.architecture, model, optimizers.build(model, job.train))


def fresh_sharded(job: Job, data: TokenSet, shard: Shard, *, initialise: bool) -> TrainingState:
    """`fresh` for a model in shards: its parameters are on the meta device until a parallelism shards them, and `rows`
    has this rank's rows of their first values; none without `initialise`, where a checkpoint is loaded afterwards. The
    optimizer stands for the one that comes with the shards."""
    with ShardedInit(shard, keep=initialise) as init:
        model = _initialised(job, data, load=initialise)
        rows = init.rows(model)
    return TrainingState(job.model.architecture, model, optimizers.build(model, job.train), rows=rows)


def _initialised(job: Job, data: TokenSet, *, load: bool) -> Model:
    torch.manual_seed(job.train.seed)
    cls = architecture(job.model.architecture)
    model = cls(cls.shape_of(job.model, data.vocab_size), job.model.dropout)
    if job.model.init_from and load:
        try:
            weights.load(model, Path(job.model.init_from), data)
        except (checkpoint.CheckpointError, WeightsError, VocabularyError) as error:
            raise JobError(f"model.init_from = {job.model.init_from}: {error}") from None
    return model


def newest_on_nodes(run: Path, ranks: Ranks, written_by_first: bool) -> list[int]:
    """For each rank, the newest step whose checkpoint its node has, verified; -1: none. Each node's leader verifies."""
    directory = run / "checkpoints"
    step = None
    if ranks.leads_node:
        if ranks.is_first or not written_by_first:
            checkpoint.tidy(directory)
            checkpoint.tidy(run)
        step = checkpoint.newest_verified(directory, lambda line: print(line, flush=True))
    found = ranks.gather(torch.tensor(-1 if step is None else step))
    return [int(found[ranks.leader_of(rank)]) for rank in range(ranks.size)]


@dataclass(frozen=True)
class Saved:
    """Where a run goes on: its newest checkpoint on any node, or what ranks of an elastic job have in memory."""

    state: dict[str, Any]
    """As in state.json."""
    generators: dict[str, Tensor] | None
    """States of this rank's random generators; None: it starts from its own seed."""
    parts: Mapping[str, TensorSource]
    """`model` and `optimizer`, if this rank has them; otherwise empty."""
    source: int
    """A rank that has them."""
    send: bool
    """Whether some ranks do not have them, so that the values are sent to all."""
    folder: Path | None = None
    """The checkpoint's, if this rank's node has it."""


def find(run: Path, ranks: Ranks, have: list[int]) -> Saved | None:
    """The newest checkpoint that any node has, of which `have` is the step on each rank's node; None: there is none.
    Collective. CheckpointError if its files cannot be read."""
    newest = max(have)
    if newest < 0:
        return None
    source, send, own = have.index(newest), min(have) < newest, have[ranks.rank] == newest
    folder = checkpoint.folder_of(run / "checkpoints", newest)
    raw, rng = ((folder / name).read_bytes() if own else b"" for name in ("state.json", "rng.safetensors"))
    if send:
        raw, rng = ranks.broadcast_bytes(raw, source), ranks.broadcast_bytes(rng, source)
    generators = {tuple(key.split(".")): value for key, value in safetensors.torch.load(rng).items()}
    mine = {name: value for (name, rank), value in generators.items() if rank == str(ranks.rank)}
    parts = {name: Part(folder, name) for name in ("model", "optimizer")} if own else {}
    return Saved(json.loads(raw), mine or None, parts, source, send, folder if own else None)


def take(state: TrainingState, saved: Saved, data: TokenSet) -> None:
    """Go on from a checkpoint: everything but its tensors. JobError if it is of another model or other data."""
    _check_same(saved.state, state, data)
    there = saved.state
    state.step, state.scaler, state.precision = there["step"], there["scaler"], there["precision"]
    state.best = there["best"] if there["best"] is not None else float("inf")
    state.compile = there.get("compile", "auto")
    state.stream = there.get("stream")
    state.rng = saved.generators


def load(state: TrainingState, saved: Saved, ranks: Ranks, shard: Shard) -> None:
    """Load a checkpoint's tensors, of each this rank's rows. Collective."""
    like = {f"model.{name}": p for name, p in state.model.named_parameters()}
    like |= optimizers.tensors(state.model, state.optimizer)
    incoming = Incoming(saved, ranks, shard, {name: tuple(tensor.shape) for name, tensor in like.items()})
    with torch.no_grad():
        for name, parameter in state.model.named_parameters():
            local(parameter).copy_(incoming[f"model.{name}"])
    optimizers.restore(state.model, state.optimizer, incoming)


def _check_same(saved: dict[str, Any], state: TrainingState, data: TokenSet) -> None:
    before = {"architecture": checkpoint.architecture_of(saved), **saved["shape"]}
    given, optimizer = optimizers.name_of(state.optimizer), saved.get("optimizer", "adamw")
    if given != optimizer:
        raise JobError(f"train.optimizer = {given}; allowed: {optimizer}, as in this run's checkpoints")
    for name, value in {"architecture": state.architecture, **dataclasses.asdict(state.model.shape)}.items():
        if before.get(name) != value:
            raise JobError(f"model.{name} = {value}; allowed: {before.get(name)}, as in this run's checkpoints")
    if saved["data"] != identity(data):
        raise JobError(f"data.path = {data.path}: not the tokens that this run's checkpoints were trained on")


def identity(data: TokenSet) -> str:
    """What identifies a token set: a run resumes only on the same one, as the step is also its position in the data.
    Of a text that is read while training it is what the order of its tokens depends on."""
    split = data.manifest["splits"]["train"]
    if STREAM in data.manifest:
        parts = (data.manifest[STREAM]["sha256"], data.encoding.get("sha256", ""))
        return hashlib.sha256("".join(parts).encode()).hexdigest()
    return str(split.get("sha256") or split["tokens"])


def own_generators(device: torch.device) -> dict[str, Tensor]:
    """State of this rank's random generators: cpu, and cuda on a GPU."""
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def set_generators(saved: dict[str, Tensor] | None, device: torch.device, seed: int) -> None:
    """Load the generators' state, or seed those that were not saved."""
    torch.manual_seed(seed)
    if saved and "cpu" in saved:
        torch.set_rng_state(saved["cpu"])
    if saved and "cuda" in saved and device.type == "cuda":
        torch.cuda.set_rng_state(saved["cuda"], device)


def capture(
    state: TrainingState, parallel: Parallelism, ranks: Ranks, data: TokenSet, *, to_resume: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Files and state.json of a checkpoint: with `to_resume` everything that resuming needs, else what sampling needs.
    Collective: all ranks call it together."""
    files: dict[str, Any] = {**parallel.tensors(optimizer=to_resume)}
    generators = (
        {name: ranks.gather(value) for name, value in own_generators(ranks.device).items()} if to_resume else {}
    )
    if (
        ranks.is_first or not parallel.calls_together
    ):  # of a sharded model's checkpoint, rank 0 writes what is not a shard
        if name := data.encoding.get("ranks"):
            files[name] = (data.path / name).read_bytes()
        if to_resume:
            files["rng.safetensors"] = {
                f"{name}.{rank}": rows[rank] for name, rows in generators.items() for rank in range(ranks.size)
            }
    return files, {
        **described(state, data),
        "encoding": data.encoding,
        "ranks": ranks.nodes,
        "torch": torch.__version__,
    }


def described(state: TrainingState, data: TokenSet) -> dict[str, Any]:
    """What state.json says of the state itself."""
    return {
        "step": state.step,
        "architecture": state.architecture,
        "shape": dataclasses.asdict(state.model.shape),
        "best": state.best if state.best < float("inf") else None,
        "scaler": state.scaler,
        "precision": state.precision,
        "compile": state.compile,
        "optimizer": optimizers.name_of(state.optimizer),
        "data": identity(data),
        **({"stream": state.stream} if state.stream else {}),
    }
