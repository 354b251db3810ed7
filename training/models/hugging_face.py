"""Read and write weights in Hugging Face's layout.

    python -m training.models.hugging_face RUN_OR_CHECKPOINT OUT     a folder that `transformers` opens

Names on the hub may lack the prefix that `save_pretrained` writes: both are read, the prefixed one is written. Only
safetensors are read: a pickle can run code.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.models.base import Model


class WeightsError(ValueError):
    """Weights that cannot be used: one line that says which and why."""


def load(model: Model, folder: Path) -> None:
    """Load weights from a folder with model.safetensors (and config.json). WeightsError if they do not fit."""
    path = folder / "model.safetensors"
    if not path.is_file():
        pickles = [p.name for p in sorted(folder.glob("*")) if p.suffix in {".bin", ".pt", ".pth", ".ckpt"}]
        found = f" ({', '.join(pickles)} is not read: a pickle can run code)" if pickles else ""
        raise WeightsError(f"{folder}: no model.safetensors{found}")
    _check_config(model, folder / "config.json")
    try:
        with safe_open(path, framework="pt") as file:
            there = {name.removeprefix(model.hugging_face_prefix): name for name in file.keys()}  # noqa: SIM118
            for name, parameter in model.state_dict().items():
                theirs, transposed = model.hugging_face(name)
                if theirs not in there:
                    raise WeightsError(f"{path}: no {theirs}, the file's name for {name}")
                value = file.get_tensor(there[theirs])
                value = value.t() if transposed else value
                if name in model.vocabulary_parameters and value.size(0) < parameter.size(0):
                    parameter = parameter[: value.size(0)]  # the rows of a padded vocabulary stay as initialised
                if value.shape != parameter.shape:
                    sizes = f"{tuple(value.shape)}, the job's model has {tuple(parameter.shape)}"
                    raise WeightsError(f"{path}: {theirs} is {sizes}")
                parameter.copy_(value)
    except SafetensorError as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error})") from None


def save(model: type[Model], shape: Any, parameters: Mapping[str, Tensor], folder: Path) -> None:
    """Write model.safetensors and config.json for `from_pretrained(folder)`; `parameters` have our names."""
    out = {}
    for name, tensor in {**parameters, **model.hugging_face_defaults(parameters)}.items():
        theirs, transposed = model.hugging_face(name)
        out[model.hugging_face_prefix + theirs] = (tensor.t() if transposed else tensor).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.hugging_face_config(shape), indent=2) + "\n")


def _check_config(model: Model, path: Path) -> None:
    """WeightsError if config.json differs from the model's shape. The weights do not show the number of heads:
    with a wrong one the model would train without an error."""
    if not path.is_file():
        return
    config = json.loads(path.read_text())
    for name, value in model.hugging_face_config(model.shape).items():
        if type(value) is int and name != "vocab_size" and config.get(name, value) != value:
            raise WeightsError(f"{path}: {name} = {config[name]}, the job's model has {value}")


def main(argv: Sequence[str] | None = None) -> int:
    from training.checkpoint import files as checkpoint

    parser = argparse.ArgumentParser(
        prog="python -m training.models.hugging_face", description="Export for `transformers`."
    )
    parser.add_argument("source", type=Path, help="a run directory or a checkpoint in one")
    parser.add_argument("out", type=Path)
    args = parser.parse_args(argv)
    try:
        folder = checkpoint.find(args.source)
        model, shape = checkpoint.model_of(checkpoint.read_state(folder))
        save(model, shape, checkpoint.read_part(folder, "model"), args.out)
    except (checkpoint.CheckpointError, WeightsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}/model.safetensors and config.json, from {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
