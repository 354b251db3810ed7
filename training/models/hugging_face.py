"""Read and write weights in Hugging Face's layout.

    python -m training.models.hugging_face RUN_OR_CHECKPOINT OUT     a folder that `transformers` opens

Names on the hub may lack the prefix that `save_pretrained` writes: both are read, the prefixed one is written. Weights
are one file or shards of it (training/models/weight_files.py); a pickle is not read. A model whose tokens have other
numbers than Hugging Face's is exported with a tokenizer that has ours, and read with the vocab.json beside the weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from training.data.vocabulary import Vocabulary, VocabularyError
from training.keys import bounded
from training.manifest import SEPARATOR
from training.models import hugging_face_tokenizer, weight_files
from training.models.base import Model
from training.models.weight_files import WeightFiles, WeightsError, read_json

CONFIG = "config.json"


def load(model: Model, folder: Path, vocabulary: Callable[[], Vocabulary] | None = None) -> None:
    """Load weights from a folder with model.safetensors or shards of it (and config.json). WeightsError if they do not
    fit.

    `vocabulary` returns the token set's. If the model has a tokenizer of Hugging Face's, and the folder its vocab.json,
    each token's row is the one that this token has there. Otherwise the rows are taken as they are.
    """
    check_config(type(model), model.shape, folder)
    rows = _rows(model, folder / "vocab.json", vocabulary)
    parameters = model.state_dict()
    for name, value in values(type(model), parameters, folder):
        parameter = parameters[name]
        if name in model.vocabulary_parameters and rows:
            value = _in_our_order(value, parameter, rows)
        elif (
            name in model.vocabulary_parameters
            and value.size(0) < parameter.size(0)
            and not model.hugging_face_tokenizer
        ):
            parameter = parameter[: value.size(0)]  # the rows of a padded vocabulary stay as initialised
        if value.shape != parameter.shape:
            theirs = f"{tuple(value.shape)}, the job's model has {tuple(parameter.shape)}"
            raise WeightsError(f"{folder}: {model.hugging_face(name)[0]} is {theirs}")
        parameter.copy_(value)


def values(model: type[Model], names: Iterable[str], folder: Path) -> Iterator[tuple[str, Tensor]]:
    """A folder's tensors with our names, for these of our names, as they are there: one file after the other, one
    tensor in memory. WeightsError for a name that the folder has not, before the first is read."""
    files = WeightFiles(folder)
    there = {name.removeprefix(model.hugging_face_prefix): name for name in files.file_of}
    wanted: dict[str, tuple[str, bool]] = {}
    for name in names:
        theirs, transposed = model.hugging_face(name)
        if theirs not in there:
            raise WeightsError(f"{folder}: no {theirs}, the file's name for {name}")
        wanted[there[theirs]] = name, transposed
    for theirs, value in files.read(wanted):
        name, transposed = wanted[theirs]
        yield name, value.t() if transposed else value


def save(
    model: type[Model],
    shape: Any,
    parameters: Mapping[str, Tensor],
    folder: Path,
    shard_bytes: int = weight_files.SHARD_BYTES,
    special: Mapping[str, int] | None = None,
) -> list[str]:
    """Write the weights and config.json for `from_pretrained(folder)`; `parameters` have our names. Returns the names
    of the files. Each tensor is asked for once, in their order, and let go with its shard, of `shard_bytes` at most.
    `special` has entries of config.json for the vocabulary's special tokens, such as eos_token_id."""
    names = weight_files.write(_their_tensors(model, parameters), folder, shard_bytes)
    (folder / CONFIG).write_text(json.dumps({**model.hugging_face_config(shape), **(special or {})}, indent=2) + "\n")
    return [*names, CONFIG]


def _their_tensors(model: type[Model], parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in chain(parameters.items(), model.hugging_face_defaults(parameters).items()):
        theirs, transposed = model.hugging_face(name)
        yield model.hugging_face_prefix + theirs, tensor.t() if transposed else tensor


def check_config(model: type[Model], shape: Any, folder: Path) -> None:
    """WeightsError if a folder's config.json is of another model than this shape's. The weights do not show all of it,
    such as the number of heads: with a wrong one the model would train without an error."""
    path = folder / CONFIG
    if path.is_file() and (differs := model.hugging_face_differs(read_json(path), shape)):
        raise WeightsError(f"{path}: {differs}")


def _rows(model: Model, path: Path, vocabulary: Callable[[], Vocabulary] | None) -> tuple[list[int], list[int]] | None:
    """Our tokens' rows and the same tokens' rows in the weights, by vocab.json; None if there is nothing to compare."""
    if not model.hugging_face_tokenizer or vocabulary is None or not path.is_file():
        return None
    theirs = read_json(path)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Export a checkpoint as the command line says. Exit code: 0, or 2 for one that cannot be read or exported."""
    from training.checkpoint import files as checkpoint
    from training.checkpoint.reader import Part
    from training.data import tokenizer

    parser = argparse.ArgumentParser(
        prog="python -m training.models.hugging_face", description="Export for `transformers`."
    )
    parser.add_argument("source", type=Path, help="a run directory or a checkpoint in one")
    parser.add_argument("out", type=Path)
    gigabytes = bounded(float, 1e-6)
    parser.add_argument("--shard-size", type=gigabytes, default=5, metavar="GB", help="of a file, at most (5)")
    args = parser.parse_args(argv)
    try:
        folder = checkpoint.find(args.source)
        state = checkpoint.read_state(folder)
        model, shape = checkpoint.model_of(state)
        known = None
        if model.hugging_face_tokenizer or "ranks" in state["encoding"]:
            known = tokenizer.vocabulary_of(state["encoding"], folder)
        special = hugging_face_tokenizer.special(known) if known and not model.hugging_face_tokenizer else None
        parameters = Part(folder, "model")  # of a checkpoint in shards, too, one tensor in memory at a time
        written = save(model, shape, parameters, args.out, int(args.shard_size * 1e9), special)
        has_tokenizer = known is not None and hugging_face_tokenizer.write(model, shape, known, args.out)
    except (checkpoint.CheckpointError, WeightsError, VocabularyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    also = ", with the tokenizer" if has_tokenizer else ""
    shards = f"{len(written) - 2} shards, {weight_files.INDEX}" if len(written) > 2 else weight_files.SINGLE
    print(f"{args.out}/{shards} and {CONFIG}, from {folder}{also}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
