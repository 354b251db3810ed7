"""The weights that a new run begins with (model.init_from): those of another run or of a checkpoint, whole or in
shards, or a folder's in Hugging Face's layout. Of the other run nothing but the model is taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from training import manifest
from training.checkpoint import files as checkpoint
from training.checkpoint.reader import Part
from training.data import tokenizer
from training.data.token_set import TokenSet
from training.models import hugging_face
from training.models.base import Model
from training.models.weight_files import WeightsError


def load(model: Model, source: Path, data: TokenSet) -> None:
    """Fill a model's parameters. CheckpointError, WeightsError or VocabularyError if they do not fit."""
    if (source / manifest.NAME).is_file() or any((source / name).is_dir() for name in ("best", "checkpoints")):
        _load_own(model, checkpoint.find(source), data.encoding)
    else:
        hugging_face.load(model, source, partial(tokenizer.vocabulary_of, data.encoding, data.path))


def _load_own(model: Model, folder: Path, encoding: Mapping[str, Any]) -> None:
    """Fill the parameters from a checkpoint, one tensor in memory at a time."""
    state = checkpoint.read_state(folder)
    cls, shape = checkpoint.model_of(state)
    if cls is not type(model):
        raise WeightsError(f"{folder}: a {cls.__name__}, the job's model is a {type(model).__name__}")
    _check_tokens(state["encoding"], encoding, folder)
    there, here = dataclasses.asdict(shape), dataclasses.asdict(model.shape)
    for name in here.keys() - {"block_size", "vocab_size"}:  # which tensors' sizes depend on, if the model needs them
        if there[name] != here[name]:
            raise WeightsError(f"{folder}: {name} = {there[name]}, the job's model has {here[name]}")
    part = Part(folder, "model")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part.shape(name) != tuple(parameter.shape):
                sizes = f"{part.shape(name)}, the job's model has {tuple(parameter.shape)}"
                raise WeightsError(f"{folder}: {name} is {sizes}")
            parameter.copy_(part[name])


def _check_tokens(there: Mapping[str, Any], here: Mapping[str, Any], folder: Path) -> None:
    """WeightsError if the model was trained with another vocabulary: its rows would be other tokens'."""
    for name in ("name", "sha256"):
        if name in there and name in here and there[name] != here[name]:
            raise WeightsError(f"{folder}: trained with another vocabulary than the token set's: {name} {there[name]}")
