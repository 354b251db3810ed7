"""Read and write weights in Hugging Face's layout.

    python -m training.models.hugging_face RUN_OR_CHECKPOINT OUT     a folder that `transformers` opens

Names on the hub may lack the prefix that `save_pretrained` writes: both are read, the prefixed one is written. Only
safetensors are read: a pickle can run code. A model whose tokens have other numbers than Hugging Face's is exported
with a tokenizer that has ours, and read with the vocab.json beside the weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.data.vocabulary import Vocabulary, VocabularyError
from training.manifest import SEPARATOR
from training.models import hugging_face_tokenizer
from training.models.base import Model


class WeightsError(ValueError):
    """Weights that cannot be used: one line that says which and why."""


def load(model: Model, folder: Path, vocabulary: Callable[[], Vocabulary] | None = None) -> None:
    """Load weights from a folder with model.safetensors (and config.json). WeightsError if they do not fit.

    `vocabulary` returns the token set's. If the model has a tokenizer of Hugging Face's, and the folder its vocab.json,
    each token's row is the one that this token has there. Otherwise the rows are taken as they are.
    """
    path = folder / "model.safetensors"
    if not path.is_file():
        pickles = [p.name for p in sorted(folder.glob("*")) if p.suffix in {".bin", ".pt", ".pth", ".ckpt"}]
        found = f" ({', '.join(pickles)} is not read: a pickle can run code)" if pickles else ""
        raise WeightsError(f"{folder}: no model.safetensors{found}")
    _check_config(model, folder / "config.json")
    rows = _rows(model, folder / "vocab.json", vocabulary)
    try:
        with safe_open(path, framework="pt") as file:
            there = {name.removeprefix(model.hugging_face_prefix): name for name in file.keys()}  # noqa: SIM118
            for name, parameter in model.state_dict().items():
                theirs, transposed = model.hugging_face(name)
                if theirs not in there:
                    raise WeightsError(f"{path}: no {theirs}, the file's name for {name}")
                value = file.get_tensor(there[theirs])
                value = value.t() if transposed else value
                if name in model.vocabulary_parameters and rows:
                    value = _in_our_order(value, parameter, rows)
                elif (
                    name in model.vocabulary_parameters
                    and value.size(0) < parameter.size(0)
                    and not model.hugging_face_tokenizer
                ):
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


def _rows(model: Model, path: Path, vocabulary: Callable[[], Vocabulary] | None) -> tuple[list[int], list[int]] | None:
    """Our tokens' rows and the same tokens' rows in the weights, by vocab.json; None if there is nothing to compare."""
    if not model.hugging_face_tokenizer or vocabulary is None or not path.is_file():
        return None
    theirs = json.loads(path.read_text(encoding="utf-8"))
    text = hugging_face_tokenizer.tokens_of(vocabulary())
    ours = model.hugging_face_tokens(text, model.shape)
    if missing := [token for token in text if token not in theirs and token != SEPARATOR]:
        raise WeightsError(f"{path}: has not {len(missing)} of the token set's tokens, such as {missing[0]!r}")
    both = [token for token in ours if token in theirs]
    return [ours[token] for token in both], [theirs[token] for token in both]


def _in_our_order(value: Tensor, parameter: Tensor, rows: tuple[list[int], list[int]]) -> Tensor:
    """A value with a row for each token, its rows where our model has them; tokens that it lacks stay as they are. One
    that does not fit is returned as it is."""
    ours, theirs = rows
    if value.shape[1:] != parameter.shape[1:] or value.size(0) <= max(theirs):
        return value
    ordered = parameter.clone()
    ordered[ours] = value[theirs]
    return ordered


def _check_config(model: Model, path: Path) -> None:
    """WeightsError if config.json differs from the model's shape. The weights do not show the number of heads:
    with a wrong one the model would train without an error."""
    if not path.is_file():
        return
    config = json.loads(path.read_text())
    for name, value in model.hugging_face_config(model.shape).items():
        if type(value) in (int, float) and name != "vocab_size" and config.get(name, value) != value:
            raise WeightsError(f"{path}: {name} = {config[name]}, the job's model has {value}")


def main(argv: Sequence[str] | None = None) -> int:
    from training.checkpoint import files as checkpoint
    from training.data import tokenizer

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
        if model.hugging_face_tokenizer:
            vocabulary = tokenizer.vocabulary_of(checkpoint.read_state(folder)["encoding"], folder)
            hugging_face_tokenizer.write(model, shape, vocabulary, args.out)
    except (checkpoint.CheckpointError, WeightsError, VocabularyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    also = ", with the tokenizer" if model.hugging_face_tokenizer else ""
    print(f"{args.out}/model.safetensors and config.json, from {folder}{also}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
