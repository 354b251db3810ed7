"""Weights in .safetensors files as Hugging Face lays them out: one model.safetensors, or shards and an index.

    model-00001-of-00003.safetensors, ...     tensors by name
    model.safetensors.index.json              {"metadata": {"total_size": bytes}, "weight_map": {name: file}}

One file is open at a time, and one tensor of it is in memory; a writer has one shard in memory. Pickles are not read: a
pickle can run code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training import manifest

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000
"""Bytes of a shard's tensors at most: what transformers wrote for years. A larger tensor has a shard to itself."""
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?|\.model-\d{5}\.part")
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


class WeightsError(ValueError):
    """Weights that cannot be used: one line that says which and why."""


def read_json(path: Path) -> dict[str, Any]:
    """An object of JSON; WeightsError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise WeightsError(f"{path}: not JSON in UTF-8") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: not an object of JSON")
    return content


class WeightFiles:
    """The tensors of a folder. WeightsError if it has none, or its index is wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file_of: dict[str, str] = {}
        """Tensor's name -> the name of its file, in the order of the files."""
        if (folder / SINGLE).is_file():
            with _opened(folder / SINGLE) as file:
                self.file_of = dict.fromkeys(file.keys(), SINGLE)
        elif (folder / INDEX).is_file():
            self.file_of = _weight_map(folder / INDEX)
        else:
            pickles = [path.name for path in sorted(folder.glob("*")) if path.suffix in _PICKLES]
            more = f" and {len(pickles) - 3} more" if len(pickles) > 3 else ""
            found = f" ({', '.join(pickles[:3])}{more} is not read: a pickle can run code)" if pickles else ""
            raise WeightsError(f"{folder}: no {SINGLE}{found}")

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """These tensors with their names, file by file. WeightsError for one that its file does not have."""
        by_file: dict[str, list[str]] = {}
        for name in names:
            by_file.setdefault(self.file_of[name], []).append(name)
        for name_of_file, wanted in sorted(by_file.items()):
            path = self.folder / name_of_file
            with _opened(path) as file:
                has = set(file.keys())
                for name in wanted:
                    if name not in has:
                        raise WeightsError(f"{path}: no {name}, which {INDEX} says is there")
                    try:
                        yield name, file.get_tensor(name)
                    except SafetensorError as error:
                        raise WeightsError(f"{path}: {name} cannot be read ({error})") from None


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise WeightsError(f"{path.parent}: no {path.name}, which {INDEX} names") from None
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error})") from None


def _weight_map(path: Path) -> dict[str, str]:
    """The files of an index, by tensor. A name that is a path could lead out of the folder."""
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise WeightsError(f"{path}: no weight_map")
    for name, file in files.items():
        if not manifest.is_plain(file) or not file.endswith(".safetensors"):
            raise WeightsError(f"{path}: {name} is in {file!r}; allowed: the name of a .safetensors file beside it")
    return dict(files)


def write(tensors: Iterable[tuple[str, Tensor]], folder: Path, shard_bytes: int = SHARD_BYTES) -> list[str]:
    """Write tensors as model.safetensors, or as shards of at most `shard_bytes` with an index; returns the names of the
    files. Weights that a folder has are removed first: a reader would find them beside the new ones. Each tensor is
    taken when its shard is filled, so an iterator that makes them one by one has one shard in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink()
    parts: list[list[str]] = []
    total = 0
    for shard in _shards(tensors, shard_bytes):
        parts.append(list(shard))
        total += sum(map(_bytes, shard.values()))
        save_file(shard, folder / f".model-{len(parts):05d}.part", metadata={"format": "pt"})
        shard.clear()  # before the next one is filled
    names = [SINGLE]
    if len(parts) > 1:
        names = [f"model-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)]
    for number, name in enumerate(names, 1):
        (folder / f".model-{number:05d}.part").rename(folder / name)
    if len(parts) > 1:
        files = {tensor: name for name, shard in zip(names, parts, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        names.append(INDEX)
    return names


def _shards(tensors: Iterable[tuple[str, Tensor]], limit: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if shard and size + _bytes(tensor) > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.contiguous()
        size += _bytes(tensor)
    yield shard


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
