"""Weights in shards with an index: written and read one file at a time, and what is wrong with them is named."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from training.models import hugging_face, weight_files
from training.models.gpt2 import GPT
from training.models.gpt2 import Shape as Gpt2Shape
from training.models.llama import Llama
from training.models.llama import Shape as LlamaShape
from training.models.weight_files import INDEX, WeightFiles, WeightsError

SHAPES: dict[type, Any] = {
    GPT: Gpt2Shape(n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=67),
    Llama: LlamaShape(n_layer=2, n_head=4, n_kv_head=2, n_embd=32, intermediate_size=48, block_size=16, vocab_size=67),
}
CLASSES = {GPT: "GPT2LMHeadModel", Llama: "LlamaForCausalLM"}
LIMIT = 20_000  # bytes: some five shards


def saved(folder: Path, kind: type = Llama) -> torch.nn.Module:
    torch.manual_seed(1)
    ours = kind(SHAPES[kind]).eval()
    names = hugging_face.save(kind, SHAPES[kind], ours.state_dict(), folder, LIMIT)
    assert set(names) == {path.name for path in folder.iterdir()} and len(names) > 4
    return ours


@pytest.mark.parametrize("kind", [GPT, Llama])
def test_shards_open_in_transformers_and_in_ours(tmp_path: Path, kind: type) -> None:
    transformers = pytest.importorskip("transformers")
    ours = saved(tmp_path, kind)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert all(path.stat().st_size < LIMIT + 2000 for path in shards)
    theirs, report = getattr(transformers, CLASSES[kind]).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokens = torch.randint(0, 67, (3, 16))
    torch.testing.assert_close(ours.logits(tokens), theirs.eval()(tokens).logits[:, -1], rtol=0, atol=1e-5)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert (tmp_path / "theirs" / INDEX).is_file()
    again = kind(SHAPES[kind])
    hugging_face.load(again, tmp_path / "theirs")
    assert all(torch.equal(value, ours.state_dict()[name]) for name, value in again.state_dict().items())


def test_one_file_is_open_at_a_time_and_one_shard_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    seen: list[int] = []

    def made() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(12):
            tensor = torch.full((1000,), float(number))
            alive.append(number)
            weakref.finalize(tensor, alive.remove, number)
            seen.append(len(alive))
            yield f"t{number:02d}", tensor

    weight_files.write(made(), tmp_path, 8000)  # two tensors a shard
    assert max(seen) <= 3, "a shard, and the tensor after it"
    opened: list[str] = []
    real = weight_files._opened
    monkeypatch.setattr(weight_files, "_opened", lambda path: opened.append(path.name) or real(path))
    files = WeightFiles(tmp_path)
    values = {name: float(tensor[0]) for name, tensor in files.read(reversed(list(files.file_of)))}
    assert values == {f"t{number:02d}": float(number) for number in range(12)}
    assert opened == [f"model-{number:05d}-of-00006.safetensors" for number in range(1, 7)]


def test_old_weights_do_not_stay_beside_new_ones(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    ours = Llama(SHAPES[Llama])
    assert hugging_face.save(Llama, SHAPES[Llama], ours.state_dict(), tmp_path) == ["model.safetensors", "config.json"]
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "config.json", "notes.txt"}


def altered(index: Path, **changes: object) -> None:
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "weight_map": {**content["weight_map"], **changes}}))


def test_wrong_shards_are_named(tmp_path: Path) -> None:
    saved(tmp_path)
    index, ours = tmp_path / INDEX, Llama(SHAPES[Llama])
    good, second = index.read_text(), sorted(tmp_path.glob("model-*"))[1]
    refused = [
        ("not JSON", "not JSON in UTF-8"),
        ("[]", "not an object of JSON"),
        ("{}", "no weight_map"),
        (
            '{"weight_map": {"a": "../../secret.safetensors"}}',
            "a is in '../../secret.safetensors'; allowed: the name of a",
        ),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "a is in 'pytorch_model.bin'; allowed: the name of a"),
        ('{"weight_map": {"a": "a.safetensors"}}', "no model.embed_tokens.weight, the file's name for tokens.weight"),
    ]
    for content, message in refused:
        index.write_text(content)
        with pytest.raises(WeightsError, match=re.escape(message)) as error:
            hugging_face.load(ours, tmp_path)
        assert "\n" not in str(error.value)
    index.write_text(good)
    altered(index, **{"model.norm.weight": second.name})
    with pytest.raises(WeightsError, match=rf"{second.name}: no model.norm.weight, which {INDEX} says is there"):
        hugging_face.load(ours, tmp_path)
    index.write_text(good)
    raw = second.read_bytes()
    second.write_bytes(raw[:-9])
    with pytest.raises(WeightsError, match=rf"{second.name}: not a whole safetensors file"):
        hugging_face.load(ours, tmp_path)
    second.unlink()
    with pytest.raises(WeightsError, match=rf"no {second.name}, which {INDEX} names"):
        hugging_face.load(ours, tmp_path)


def test_pickles_in_shards_are_not_read(tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / f"pytorch_model-{number:05d}-of-00005.bin").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"pytorch_model-00001-of.* and 2 more is not read: a pickle can run code"):
        hugging_face.load(Llama(SHAPES[Llama]), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 500_000.0}, "rope_theta = 500000.0, the job's model has 10000.0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, "rope_theta = 500.0, the job's"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 'rotations of the kind "llama3"'),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 'rotations of the kind "linear"'),
        ({"num_key_value_heads": None}, "num_key_value_heads = 4, the job's model has 2"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps = 1e-06, the job's model has 1e-05"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = true, the job's model has false"),
        ({"attention_bias": True}, "attention_bias = true, the job's model has false"),
        ({"model_type": "mistral"}, "a mistral with silu, the job's model is a llama with silu"),
        ({"max_position_embeddings": 8}, "max_position_embeddings = 8, the job's model has 16"),
    ],
)
def test_a_config_of_another_llama_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(WeightsError, match=re.escape(f"config.json: {message}")):
        hugging_face.load(Llama(SHAPES[Llama]), tmp_path)


def test_weights_of_a_longer_context_and_in_bf16_are_read(tmp_path: Path) -> None:
    """As the published files are, with the rotations' angles beside the weights."""
    ours = saved(tmp_path)
    path = tmp_path / "config.json"
    published = {**json.loads(path.read_text()), "max_position_embeddings": 4096, "rope_scaling": None}
    del published["rope_theta"], published["head_dim"]
    path.write_text(json.dumps(published))
    for shard in tmp_path.glob("model-*.safetensors"):
        save_file({name: tensor.bfloat16() for name, tensor in load_file(shard).items()}, shard)
    again = Llama(SHAPES[Llama])
    hugging_face.load(again, tmp_path)
    expected = ours.state_dict()
    assert all(torch.equal(value, expected[name].bfloat16().float()) for name, value in again.state_dict().items())
