"""A small Llama through the whole way: tokens of its own vocabulary, ranks, a resumed run, sampled text, an export."""

from __future__ import annotations

import shutil
from pathlib import Path

import llama_tokenizer
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch
from gloo_ranks import losses, start

from training import sample
from training.checkpoint import files as checkpoint
from training.data import prepare
from training.models import hugging_face, weight_files

pytestmark = pytest.mark.faults

TEXT = "the cat sat on the mat, and the dog sat on the log"
JOB = """
[data]
path = "{folder}/data"
[model]
architecture = "llama"
n_layer = 2
n_head = 4
n_kv_head = 2
n_embd = 32
block_size = 16
[train]
steps = 40
global_batch_tokens = 128
micro_batch = 4
lr = 0.02
min_lr = 0.002
warmup = 2
eval_windows = 4
precision = "fp32"
timeout = 60
[checkpoint]
every = 20
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that has learned one line."""
    made = tmp_path_factory.mktemp("llama")
    (made / "text.jsonl").write_text(f'{{"text": "{TEXT}"}}\n' * 1000)
    vocabulary = llama_tokenizer.write(made / "tokenizer.json")
    assert prepare.main([str(made / "text.jsonl"), "--out", str(made / "data"), "--ranks", str(vocabulary)]) == 0
    (made / "job.toml").write_text(JOB.format(folder=made))
    start(made / "job.toml", made / "run", 2, []).done()
    return made


def test_any_number_of_ranks_has_the_same_losses_and_a_resumed_run_too(folder: Path, tmp_path: Path) -> None:
    start(folder / "job.toml", tmp_path / "one", 1, []).done()
    assert losses(tmp_path / "one") == pytest.approx(losses(folder / "run"), rel=1e-4)
    shutil.copytree(folder / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "best")
    shutil.rmtree(checkpoint.folder_of(tmp_path / "again" / "checkpoints", 40))
    start(folder / "job.toml", tmp_path / "again", 2, []).done()
    assert losses(tmp_path / "again") == losses(folder / "run")


def test_what_it_learned_is_sampled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(folder / "run"), "--prompt", "", "--temperature", "0", "--tokens", "30"]
    assert sample.main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith(f" {TEXT}</s><s> the cat"), "after <s>, with which every prompt begins"


def test_an_export_in_shards_says_the_same_in_transformers(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert hugging_face.main([str(folder / "run"), str(tmp_path), "--shard-size", "0.00005"]) == 0
    assert (tmp_path / weight_files.INDEX).is_file() and (tmp_path / "tokenizer.json").is_file()
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    spoken = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = sample.load(checkpoint.find(folder / "run"))
    tokens = torch.tensor([[1, *spoken("the cat sat", add_special_tokens=False)["input_ids"]]])
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(tokens), theirs(tokens).logits[:, -1], rtol=0, atol=1e-4)
    assert theirs.config.eos_token_id == 2 and theirs.config.bos_token_id == 1
