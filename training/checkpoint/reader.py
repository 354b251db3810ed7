"""Read a part of a checkpoint, the model or the optimizer, tensor by tensor, from one file or from the ranks' shards.

A shard's file has some rows of each tensor (training.parallel.shard); rows of the same name in several files are one
tensor, in the order of the files. So whoever reads, on whatever number of ranks, takes the rows that it needs from the
files that have them, and nobody needs memory for the whole part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from training.checkpoint.files import CheckpointError, part_file


class Part(Mapping[str, Tensor]):
    """The tensors of a part by name; each is read from disk when it is asked for."""

    def __init__(self, folder: Path, part: str) -> None:
        """Read the files' headers. CheckpointError if a file is missing or cannot be read."""
        self._pieces: dict[str, list[tuple[Any, tuple[int, ...]]]] = {}
        for path in _files(folder, part):
            try:
                file: Any = safe_open(path, framework="pt")
                for name in file.keys():  # noqa: SIM118
                    self._pieces.setdefault(name, []).append((file, tuple(file.get_slice(name).get_shape())))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: {error}") from None
        for name, pieces in self._pieces.items():
            if len({shape[1:] for _, shape in pieces}) > 1 or (len(pieces) > 1 and not pieces[0][1]):
                raise CheckpointError(f"{folder}: {name}: its rows in the shards do not fit together")

    def __getitem__(self, name: str) -> Tensor:
        """A whole tensor; KeyError if there is none of this name."""
        pieces = [file.get_tensor(name) for file, _ in self._pieces[name]]
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a whole tensor."""
        shapes = [shape for _, shape in self._pieces[name]]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()

    def rows(self, name: str, first: int, last: int) -> Tensor:
        """The rows [first, last) of a tensor; of the others nothing is read."""
        found, begin = [], 0
        for file, shape in self._pieces[name]:
            low, high = max(first - begin, 0), min(last - begin, shape[0])
            if low < high:
                found.append(file.get_slice(name)[low:high])
            begin += shape[0]
        if not found:
            file, shape = self._pieces[name][0]
            return file.get_slice(name)[0:0].reshape(0, *shape[1:])
        return torch.cat(found) if len(found) > 1 else found[0]


def _files(folder: Path, part: str) -> list[Path]:
    """The one file of a part, or all of its shards; CheckpointError if some are missing."""
    single = folder / part_file(part)
    shards = [] if single.exists() else sorted(folder.glob(f"{part}-?????-of-?????.safetensors"))
    if not shards:
        return [single]
    expected = [part_file(part, number, len(shards)) for number in range(len(shards))]
    if [path.name for path in shards] != expected:
        raise CheckpointError(
            f"{folder}: the shards of the {part} are not all there: {', '.join(p.name for p in shards)}"
        )
    return shards
