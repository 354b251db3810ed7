"""GPT-2 weights in Hugging Face's layout, in and out.

    python -m training.models.weights RUN_OR_CHECKPOINT OUT     a folder that `transformers` opens

Hugging Face's linear layers are GPT-2's own Conv1D: their weights are ours, transposed. The published file on the hub
has no `transformer.` before its names, those that `save_pretrained` writes do: both are read, the second is written.
Only safetensors are read: a pickle runs code.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.models.gpt2 import GPT, Shape

_OUTSIDE = {
    "tokens.weight": "wte.weight",
    "positions.weight": "wpe.weight",
    "norm.weight": "ln_f.weight",
    "norm.bias": "ln_f.bias",
}
_IN_A_BLOCK = {
    "norm_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm_2": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


class WeightsError(ValueError):
    """Weights that cannot be used: one line that says which and why."""


def load(model: GPT, folder: Path) -> None:
    """Fills the model from a folder with model.safetensors (and config.json) in Hugging Face's layout."""
    path = folder / "model.safetensors"
    if not path.is_file():
        pickles = [p.name for p in sorted(folder.glob("*")) if p.suffix in {".bin", ".pt", ".pth", ".ckpt"}]
        found = f" ({', '.join(pickles)} is not read: a pickle can run code)" if pickles else ""
        raise WeightsError(f"{folder}: no model.safetensors{found}")
    _check_config(model.shape, folder / "config.json")
    try:
        with safe_open(path, framework="pt") as file:
            there = {name.removeprefix("transformer."): name for name in file.keys()}  # noqa: SIM118 (no mapping)
            for name, parameter in model.state_dict().items():
                if theirs(name) not in there:
                    raise WeightsError(f"{path}: no {theirs(name)}, which {name} would be")
                _fill(parameter, file.get_tensor(there[theirs(name)]), name, path)
    except SafetensorError as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error})") from None


def theirs(name: str) -> str:
    """Our name of a parameter -> Hugging Face's, without `transformer.`"""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, layer, rest = name.split(".", 2)
    part, _, kind = rest.rpartition(".")
    return f"h.{layer}.{_IN_A_BLOCK[part]}.{kind}"


def save(shape: Shape, parameters: Mapping[str, Tensor], folder: Path) -> None:
    """Writes what `GPT2LMHeadModel.from_pretrained(folder)` opens. GPT-2 has biases: a model without gets zeros."""
    out = {}
    for name, tensor in parameters.items():
        out[f"transformer.{theirs(name)}"] = tensor.t().contiguous() if _transposed(name) else tensor.contiguous()
        bias = name.removesuffix("weight") + "bias"
        if name.endswith("weight") and bias not in parameters and name not in {"tokens.weight", "positions.weight"}:
            out[f"transformer.{theirs(bias)}"] = torch.zeros(tensor.size(0))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(shape), indent=2) + "\n")


def _transposed(name: str) -> bool:
    return name.endswith(("qkv.weight", "out.weight", "up.weight", "down.weight"))


def _fill(parameter: Tensor, value: Tensor, name: str, path: Path) -> None:
    value = value.t() if _transposed(name) else value
    if name == "tokens.weight" and value.size(0) < parameter.size(0):
        parameter = parameter[: value.size(0)]  # a padded vocabulary: the rest stays as it was initialised
    if value.shape != parameter.shape:
        theirs_is, ours = tuple(value.shape), tuple(parameter.shape)
        raise WeightsError(f"{path}: {theirs(name)} is {theirs_is}, the job's model has {ours}")
    parameter.copy_(value)


def _check_config(shape: Shape, path: Path) -> None:
    """The number of heads does not show in the weights: a wrong one would train silently from nonsense."""
    if not path.is_file():
        return
    config = json.loads(path.read_text())
    ours = {"n_layer": shape.n_layer, "n_head": shape.n_head, "n_embd": shape.n_embd, "n_positions": shape.block_size}
    for name, value in ours.items():
        if config.get(name, value) != value:
            raise WeightsError(f"{path}: {name} = {config[name]}, the job's model has {value}")


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": shape.n_layer,
        "n_head": shape.n_head,
        "n_embd": shape.n_embd,
        "n_positions": shape.block_size,
        "n_ctx": shape.block_size,
        "vocab_size": shape.vocab_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }


def main(argv: Sequence[str] | None = None) -> int:
    from training.checkpoint import files as checkpoint

    parser = argparse.ArgumentParser(prog="python -m training.models.weights", description="Export for `transformers`.")
    parser.add_argument("source", type=Path, help="a run directory or a checkpoint in one")
    parser.add_argument("out", type=Path)
    args = parser.parse_args(argv)
    try:
        folder = checkpoint.find(args.source)
        state = checkpoint.read_state(folder)
        save(Shape(**state["shape"]), checkpoint.read_tensors(folder / "model.safetensors"), args.out)
    except (checkpoint.CheckpointError, WeightsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}/model.safetensors and config.json, from {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
