"""The state of a run: creates it, loads it from a checkpoint on every rank, and collects it for a checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from training import optimizer as optimizers
from training.checkpoint import files as checkpoint
from training.data import tokenizer
from training.data.token_set import TokenSet
from training.data.vocabulary import VocabularyError
from training.job import Job
from training.keys import JobError
from training.manifest import STREAM
from training.models import architecture, hugging_face
from training.models.base import Model
from training.models.weight_files import WeightsError
from training.parallel import Parallelism
from training.parallel.ranks import Ranks


@dataclass
class TrainingState:
    architecture: str
    model: Model
    optimizer: torch.optim.Optimizer
    step: int = 0  # optimizer steps that are done
    precision: str = "auto"  # the chosen precision; a resumed run keeps it
    compile: str = "auto"  # true or false once it is chosen whether to compile; a resumed run keeps it
    best: float = float("inf")  # lowest validation loss
    stream: dict[str, Any] | None = None  # of a text that is read while training: its position after `step`
    scaler: dict[str, Any] | None = None  # state of fp16's loss scaling, loaded when the scaler exists
    rng: dict[str, Tensor] | None = None
    """States of this rank's random generators, loaded when everything else is set up."""


def fresh(job: Job, data: TokenSet, device: torch.device) -> TrainingState:
    """The state before the first step. JobError for weights in model.init_from that cannot be used."""
    torch.manual_seed(job.train.seed)
    cls = architecture(job.model.architecture)
    model = cls(cls.shape_of(job.model, data.vocab_size), job.model.dropout)
    if job.model.init_from:
        try:
            known = partial(tokenizer.vocabulary_of, data.encoding, data.path)
            hugging_face.load(model, Path(job.model.init_from), known)
        except (WeightsError, VocabularyError) as error:
            raise JobError(f"model.init_from = {job.model.init_from}: {error}") from None
    model.to(device)
    return TrainingState(job.model.architecture, model, optimizers.build(model, job.train))


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


def resume(state: TrainingState, run: Path, ranks: Ranks, data: TokenSet, have: list[int]) -> None:
    """Load the newest step that any node has; ranks without it receive it from one that has it. JobError if the
    checkpoint is of another model or other data."""
    newest = max(have)
    if newest < 0:
        return
    source, send, own = have.index(newest), min(have) < newest, have[ranks.rank] == newest
    folder = checkpoint.folder_of(run / "checkpoints", newest)
    raw, rng = ((folder / name).read_bytes() if own else b"" for name in ("state.json", "rng.safetensors"))
    if send:
        raw, rng = ranks.broadcast_bytes(raw, source), ranks.broadcast_bytes(rng, source)
    saved = json.loads(raw)
    _check_same(saved, state, data)
    if own:
        tensors = {f"model.{name}": value for name, value in checkpoint.read_part(folder, "model").items()}
        tensors |= checkpoint.read_part(folder, "optimizer")
    else:  # empty ones that receive another rank's values
        room = {f"model.{name}": p.detach() for name, p in state.model.named_parameters()}
        room |= optimizers.tensors(state.model, state.optimizer)
        tensors = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in room.items()}
    if send:
        for name in sorted(tensors):
            ranks.broadcast(tensors[name], source)
    _load(state, saved, tensors, rng, ranks.rank)


def _load(state: TrainingState, saved: dict[str, Any], tensors: dict[str, Tensor], rng: bytes, rank: int) -> None:
    with torch.no_grad():
        for name, parameter in state.model.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
    optimizers.restore(state.model, state.optimizer, tensors)
    state.step, state.scaler, state.precision = saved["step"], saved["scaler"], saved["precision"]
    state.best = saved["best"] if saved["best"] is not None else float("inf")
    state.compile = saved.get("compile", "auto")
    state.stream = saved.get("stream")
    generators = safetensors.torch.load(rng)
    own = {name.split(".")[0]: value for name, value in generators.items() if name.split(".")[1] == str(rank)}
    state.rng = own or None  # None for a rank that the checkpoint does not have: it starts from its own seed


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
    if name := data.encoding.get("ranks"):
        files[name] = (data.path / name).read_bytes()
    if to_resume:
        generators = {name: ranks.gather(value) for name, value in own_generators(ranks.device).items()}
        files["rng.safetensors"] = {
            f"{name}.{rank}": rows[rank] for name, rows in generators.items() for rank in range(ranks.size)
        }
    return files, {
        "step": state.step,
        "architecture": state.architecture,
        "shape": dataclasses.asdict(state.model.shape),
        "best": state.best if state.best < float("inf") else None,
        "scaler": state.scaler,
        "precision": state.precision,
        "compile": state.compile,
        "optimizer": optimizers.name_of(state.optimizer),
        "encoding": data.encoding,
        "data": identity(data),
        **({"stream": state.stream} if state.stream else {}),
        "ranks": ranks.nodes,
        "torch": torch.__version__,
    }
