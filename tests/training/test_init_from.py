"""model.init_from: a new run begins with the weights of another run, of a checkpoint, or of Hugging Face's layout."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from gloo_ranks import TINY, losses, start

from training.checkpoint import files as checkpoint
from training.checkpoint import weights
from training.checkpoint.files import CheckpointError
from training.data import token_set
from training.data.token_set import TokenSet
from training.models import hugging_face
from training.models.base import Model
from training.models.gpt2 import GPT
from training.models.gpt2 import Shape as Gpt2Shape
from training.models.llama import Llama
from training.models.llama import Shape as LlamaShape
from training.models.sharded_init import ShardedInit
from training.models.weight_files import WeightsError
from training.parallel.shard import Shard

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

LLAMA = ["model.architecture=llama", "model.n_kv_head=1", "model.intermediate_size=48", "model.dropout=0"]
SHAPE = LlamaShape(n_layer=2, n_head=2, n_kv_head=1, n_embd=32, intermediate_size=48, block_size=16, vocab_size=64)


@pytest.fixture(scope="module")
def first(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sharded`: a run on two ranks. `whole`, `published`: its best model in one file of ours, and in Hugging Face's
    layout, in shards with an index."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "job.toml").write_text(TINY.format(data=data))
    start(folder / "job.toml", folder / "sharded", 2, [*LLAMA, "train.parallel=fsdp"]).done()
    best = folder / "sharded" / "best"
    whole = {"model.safetensors": checkpoint.read_part(best, "model")}
    checkpoint.write(folder / "whole", whole, checkpoint.read_state(best))
    assert hugging_face.main([str(best), str(folder / "published"), "--shard-size", "2e-5"]) == 0
    assert len(list((folder / "published").glob("model-*-of-*.safetensors"))) > 2
    return folder


@pytest.fixture
def tokens(data: Path) -> TokenSet:
    return token_set.open(data)


@pytest.mark.parametrize("source", ["sharded", "sharded/best", "whole", "published"])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_every_kind_of_weights_fills_a_model_whole_or_in_shards(
    first: Path, tokens: TokenSet, source: str, shards: int
) -> None:
    expected = checkpoint.read_part(first / "sharded" / "best", "model")
    for index in range(shards):
        shard = Shard(index, shards)
        with ShardedInit(shard) as init:
            model = Llama(SHAPE)
            weights.load(model, first / source, tokens)
            rows = init.rows(model)
        assert rows.keys() == expected.keys()
        assert all(torch.equal(value, shard.of(expected[name])) for name, value in rows.items())
    plain = Llama(SHAPE)
    weights.load(plain, first / source, tokens)
    assert all(torch.equal(value.detach(), expected[name]) for name, value in plain.named_parameters())


def test_a_run_in_shards_and_a_whole_one_begin_alike_and_go_on_without_the_weights(first: Path, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(first / "sharded" / "best", folder)
    found = {}
    for parallel in ("fsdp", "ddp"):
        keys = [*LLAMA, f"train.parallel={parallel}", f"model.init_from={folder}"]
        start(first / "job.toml", tmp_path / parallel, 2, [*keys, "train.steps=3", "train.decay_steps=8"]).done()
        found[parallel] = losses(tmp_path / parallel)
    assert found["fsdp"] == pytest.approx(found["ddp"], rel=2e-5)
    assert found["ddp"][1] < losses(first / "sharded")[4] < losses(first / "sharded")[1]
    shutil.rmtree(folder)
    for parallel in ("fsdp", "ddp"):
        keys = [*LLAMA, f"train.parallel={parallel}", f"model.init_from={folder}"]
        start(first / "job.toml", tmp_path / parallel, 2, [*keys, "train.steps=4", "train.decay_steps=8"]).done()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Llama(LlamaShape(**{**vars(SHAPE), "n_layer": 1})), "n_layer = 2, the job's model has 1"),
        (Llama(LlamaShape(**{**vars(SHAPE), "n_kv_head": 2})), "n_kv_head = 1, the job's model has 2"),
        (Llama(LlamaShape(**{**vars(SHAPE), "norm_epsilon": 1e-6})), "norm_epsilon = 1e-05, the job's model has 1e-06"),
        (
            Llama(LlamaShape(**{**vars(SHAPE), "vocab_size": 80})),
            r"tokens.weight is \(64, 32\), the job's model has \(80, 32\)",
        ),
        (GPT(Gpt2Shape(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=64)), "a Llama, the job's .* a GPT"),
    ],
)
def test_another_model_is_refused(first: Path, tokens: TokenSet, model: Model, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        weights.load(model, first / "sharded", tokens)


def test_a_longer_context_is_no_other_llama(first: Path, tokens: TokenSet) -> None:
    weights.load(Llama(LlamaShape(**{**vars(SHAPE), "block_size": 32})), first / "sharded", tokens)


def test_another_vocabulary_and_a_lost_shard_are_refused(first: Path, tokens: TokenSet, tmp_path: Path) -> None:
    folder = tmp_path / "best"
    shutil.copytree(first / "sharded" / "best", folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        weights.load(Llama(SHAPE), folder, tokens)
    state = json.loads((first / "whole" / "state.json").read_text())
    other = {**state, "encoding": {"name": "cl100k_base"}}
    checkpoint.write(tmp_path / "other", {"model.safetensors": checkpoint.read_part(first / "whole", "model")}, other)
    with pytest.raises(WeightsError, match="another vocabulary than the token set's: name cl100k_base"):
        weights.load(Llama(SHAPE), tmp_path / "other", tokens)


def weights_of_no_model(rank: int) -> None:
    """Plants what one node alone may have: weights that are cut off."""

    def load(model: Model, source: Path, data: TokenSet) -> None:
        raise WeightsError(f"{source}/model.safetensors: incomplete metadata, file not fully covered")

    if rank == int(os.environ["BAD"]):
        weights.load = load


@pytest.mark.parametrize("bad", [0, 1])
def test_weights_that_one_rank_alone_cannot_use_end_all_ranks_with_its_line_and_2(
    bad: int, first: Path, tmp_path: Path
) -> None:
    keys = [*LLAMA, f"model.init_from={first / 'whole'}"]
    group = start(
        first / "job.toml", tmp_path / "run", 3, keys, before=weights_of_no_model, environment={"BAD": str(bad)}
    )
    assert group.wait() == [2, 2, 2], group.output()
    line = f"model.init_from = {first / 'whole'}: {first / 'whole'}/model.safetensors: incomplete metadata"
    for rank in range(3):
        said = [text for text in group.output(rank).splitlines() if text.startswith("error: ")]
        assert len(said) == 1 and line in said[0] and "Traceback" not in group.output(rank), group.output(rank)
        assert rank == bad or said[0].startswith(f"error: rank {bad} (node{bad}): ")
