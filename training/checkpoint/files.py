"""Checkpoints on disk: writes each step's folder atomically, and verifies every byte before reading.

    checkpoints/step-000050/
        model.safetensors        parameters, by our own names (training.models.hugging_face exports Hugging Face's)
        optimizer.safetensors    AdamW's moments
        rng.safetensors          generator state of every rank
        outer.safetensors        of a cluster that trains with others: the outer optimizer's state
        state.json               step, architecture and shape, best loss, scaler, encoding, nodes of the ranks
        vocab.tiktoken           or tokenizer.json: only if the token set has a vocabulary of its own
        manifest.json            size and SHA-256 of each file, and a checksum of itself: written last
    checkpoints/latest           the newest step, for people to read; programs look at the folders
    best/                        model.safetensors, state.json, manifest.json of the lowest validation loss

A part (model or optimizer) may also be several files, model-00001-of-00004.safetensors and so on, one from each rank
that holds a shard, with its rows of each tensor (training/checkpoint/reader.py reads them). A single writer calls
`write`. Of several writers, the first calls `begin`, each calls `write_files`, and the first calls `commit` with
everything that they returned (training/checkpoint/together.py). torch.distributed.checkpoint is not used: it writes
pickles (its .metadata) beside files of its own format without checksums, and removes the metadata of the last save
before that of the next one is in place.

All files are written into `step-000050.tmp`, each is synced, and the folder is renamed at the end: overwriting in place
left 25 of 30 files unloadable under SIGKILL. Tensors are safetensors, the rest is JSON; a pickle is never read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from training import manifest
from training.manifest import Listed
from training.models import architecture
from training.models.base import Model

Files = Mapping[str, Mapping[str, Tensor] | bytes]
"""Content by file name: tensors for a .safetensors file, the bytes of any other."""

_CHUNK = 16 * 2**20
_STEP = re.compile(r"step-(\d{6,})")
_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read: one line with the reason."""


def folder_of(directory: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return directory / f"step-{step:06d}"


def steps(directory: Path) -> list[int]:
    """Steps that have a folder, complete or damaged, newest first."""
    names = (_STEP.fullmatch(path.name) for path in directory.glob("step-*") if path.is_dir())
    return sorted((int(match[1]) for match in names if match), reverse=True)


def part_file(part: str, shard: int = 0, shards: int = 1) -> str:
    """The name of a part's file, or of its shard `shard` (counted from 0) of `shards`."""
    return f"{part}.safetensors" if shards == 1 else f"{part}-{shard + 1:05d}-of-{shards:05d}.safetensors"


def write(folder: Path, files: Files, state: Mapping[str, Any]) -> None:
    """Write a checkpoint into `folder`. If that fails, nothing is left behind and CheckpointError is raised."""
    try:
        temporary = begin(folder)
        commit(folder, write_files(temporary, {**files, "state.json": state_file(state)}))
    except OSError as error:
        abandon(folder)
        raise CheckpointError(f"{folder}: {reason(error, folder)}") from error


def state_file(state: Mapping[str, Any]) -> bytes:
    """The content of state.json."""
    return (json.dumps(state, indent=1, sort_keys=True) + "\n").encode()


def reason(error: OSError, folder: Path) -> str:
    """Why a checkpoint could not be written, without its folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({shutil.disk_usage(folder.parent).free / 1e9:.2f} GB left)"
    return error.strerror or str(error)


def abandon(folder: Path) -> None:
    """Remove what was written of a checkpoint that cannot be finished."""
    shutil.rmtree(temporary_of(folder), ignore_errors=True)


def begin(folder: Path) -> Path:
    """Make an empty temporary folder for a checkpoint's files, and return it; an unfinished earlier one is removed."""
    abandon(folder)
    temporary = temporary_of(folder)
    temporary.mkdir(parents=True)
    return temporary


def write_files(temporary: Path, files: Files) -> Listed:
    """Write files of an unfinished checkpoint and sync them; returns their entries for the manifest."""
    return {name: write_pieces(temporary / name, pieces(content)) for name, content in files.items()}


def commit(folder: Path, listed: Listed) -> None:
    """Finish a checkpoint: write the manifest of all its files, then rename its folder to the final name. An existing
    folder (a damaged step, the last best model) is first renamed to .old; after a kill, `tidy` renames it back."""
    temporary, old = temporary_of(folder), folder.with_name(folder.name + ".old")
    # publish also syncs the folder
    manifest.publish(temporary / manifest.NAME, manifest.render({"format": 1, "files": listed}))
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    manifest.sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def temporary_of(folder: Path) -> Path:
    """The folder beside `folder` in which a checkpoint is written, or removed, so that a half of one never has its
    name."""
    return folder.with_name(folder.name + ".tmp")


def tidy(directory: Path) -> None:
    """Clean up after a kill: remove unfinished folders, and rename back what was to be replaced."""
    for temporary in directory.glob("*.tmp"):
        shutil.rmtree(temporary, ignore_errors=True)
    for old in directory.glob("*.old"):
        if old.with_suffix("").exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(old.with_suffix(""))


def remove(folder: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a partly removed folder does not look like a checkpoint."""
    temporary = temporary_of(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def verify(folder: Path) -> None:
    """Compare every file with its checksum; CheckpointError for the first that is missing, cut or altered."""
    try:
        content = manifest.parse(folder / manifest.NAME)
        if "files" not in content:
            raise CheckpointError(f"{folder}: not a checkpoint")
        manifest.verify(folder, manifest.listed(content, str(folder / manifest.NAME)))
    except manifest.TokenError as error:
        raise CheckpointError(str(error)) from None


def newest_verified(directory: Path, warn: Callable[[str], None]) -> int | None:
    """The newest step whose checkpoint passes `verify`, or None; `warn` is called for each newer one that does not."""
    for step in steps(directory):
        try:
            verify(folder_of(directory, step))
            return step
        except CheckpointError as error:
            warn(f"warning: skipped checkpoint of step {step}: {error}")
    return None


def find(path: Path) -> Path:
    """The verified checkpoint at a path: the folder itself, or of a run the best model, else the newest step.
    CheckpointError if there is none."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: not a folder; allowed: a run directory or a checkpoint in one")
    if (path / manifest.NAME).is_file():
        verify(path)
        return path
    if (path / "best").is_dir():
        verify(path / "best")
        return path / "best"
    step = newest_verified(path / "checkpoints", print)
    if step is None:
        pickles = [p.name for p in sorted(path.rglob("*")) if p.suffix in {".pt", ".pth", ".bin", ".ckpt", ".pkl"}]
        refused = f"; {', '.join(pickles[:3])} is not read: a pickle can run code" if pickles else ""
        raise CheckpointError(f"{path}: no complete checkpoint{refused}")
    return folder_of(path / "checkpoints", step)


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint."""
    return dict(json.loads((folder / "state.json").read_text()))


def model_of(state: Mapping[str, Any]) -> tuple[type[Model], Any]:
    """Class and shape of a checkpoint's model, from its state.json. CheckpointError for an unknown architecture."""
    try:
        model = architecture(architecture_of(state))
    except KeyError as error:
        raise CheckpointError(f"a model of the architecture {error}, which this version does not know") from None
    return model, model.shape_class(**state["shape"])


def architecture_of(state: Mapping[str, Any]) -> str:
    """The architecture in a state.json; the oldest ones do not name it, as there was only gpt2."""
    return str(state.get("architecture", "gpt2"))


def read_part(folder: Path, part: str) -> dict[str, Tensor]:
    """All tensors of a part (model or optimizer) in memory, from its one file or from its shards. CheckpointError."""
    from training.checkpoint.reader import Part  # which imports this file

    return dict(Part(folder, part))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file; CheckpointError if it cannot be read."""
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def pieces(content: Mapping[str, Tensor] | bytes) -> Iterator[bytes | memoryview]:
    """A file's bytes, in pieces of at most 16 MiB, so that the training can get the interpreter lock in between."""
    return iter([content]) if isinstance(content, bytes) else _safetensors(content)


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write, hash and sync a file; returns its entry for the manifest."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _safetensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The pieces of a .safetensors file: length of the header, the header in JSON, then the raw values. The library's
    own writer is not used: it holds the interpreter lock, which stops the training, as long as the disk takes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    yield struct.pack("<Q", len(text)) + text
    for tensor in tensors.values():
        raw = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
        for start in range(0, len(raw), _CHUNK):
            yield raw[start : start + _CHUNK]
