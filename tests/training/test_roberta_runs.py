"""RoBERTa on real ranks: the same losses on any number of them, resumed to the bit, sampled by filling masks."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import token_files
from gloo_ranks import lines, losses, start

from training import sample
from training.checkpoint import files as checkpoint
from training.data import prepare

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

ROBERTA = ["model.architecture=roberta", "model.block_size=24", "train.global_batch_tokens=168", "checkpoint.keep=4"]
"""Dropout is 0.1, as the small job has it; 7 windows a step, in micro batches of 2."""
LEARNS = ["train.steps=60", "train.lr=0.01", "train.warmup=5", "checkpoint.every=60", "model.dropout=0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 5 to 60 tokens that count upwards, so that a masked token can be guessed from its neighbours."""
    random = np.random.default_rng(0)
    splits = []
    for documents in (400, 40):
        made: list[np.ndarray] = [
            np.append((random.integers(0, 30) + np.arange(random.integers(5, 60))) % 30, 30) for _ in range(documents)
        ]
        splits.append(np.concatenate(made))
    encoding = {"name": "counting", "special": {"<|endoftext|>": 30}}
    folder = tmp_path_factory.mktemp("tokens")
    counts = {"train": 4 * len(splits[0]), "val": 4 * len(splits[1])}
    token_files.write(folder, train=splits[0], val=splits[1], vocab_size=31, encoding=encoding, text_bytes=counts)
    return folder


def test_losses_masks_and_dropout_do_not_depend_on_the_number_of_ranks(job: Path, tmp_path: Path) -> None:
    runs = [tmp_path / f"n{size}" for size in (1, 2, 3)]
    for size, run in enumerate(runs, 1):
        start(job, run, size, ROBERTA).done()
    start(job, tmp_path / "micro", 1, [*ROBERTA, "train.micro_batch=5"]).done()
    for run in (*runs[1:], tmp_path / "micro"):
        assert losses(run) == pytest.approx(losses(runs[0]), rel=2e-5)
        validations = [[line["val_loss"] for line in lines(each) if "val_loss" in line] for each in (runs[0], run)]
        assert len(validations[0]) == 2
        assert validations[1] == pytest.approx(validations[0], rel=2e-5)
    start(job, tmp_path / "without", 1, [*ROBERTA, "model.dropout=0"]).done()
    assert losses(tmp_path / "without")[1] != pytest.approx(losses(runs[0])[1], rel=1e-4), "there was a dropout"


def test_a_resumed_run_is_the_same_to_the_bit(job: Path, tmp_path: Path) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    start(job, whole, 3, ROBERTA).done()
    shutil.copytree(whole, again)
    for step in (6, 8):
        shutil.rmtree(checkpoint.folder_of(again / "checkpoints", step))
    group = start(job, again, 3, ROBERTA)
    group.done()
    assert "going on from step 4" in group.output()
    digests = [
        checkpoint.read_state(checkpoint.folder_of(run / "checkpoints", 8))["parameters"] for run in (whole, again)
    ]
    assert losses(again) == losses(whole) and digests[0] == digests[1]


def test_the_log_and_the_metrics_have_the_perplexity_of_masked_tokens(job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    group = start(job, run, 1, [*ROBERTA, *LEARNS])
    group.done()
    first, last = lines(run)[0], lines(run)[-1]
    assert first["loss"] == pytest.approx(math.log(39), abs=0.5), "31 tokens, 4 special ones, 3 unused, <mask>"
    assert last["loss"] < first["loss"] - 0.1
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]))
    assert last["val_perplexity"] == pytest.approx(math.exp(last["val_loss"])) and "val_bits_per_byte" not in last
    shown = f"loss {last['loss']:.3f} perplexity {last['perplexity']:.1f} lr"
    assert shown in group.output() and f"val {last['val_loss']:.3f} (perplexity " in group.output()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["model.vocab_size=35"],
            "error: model.vocab_size = 35: 31 tokens of the token set and 5 special ones; allowed: 0",
        ),
        (["train.precision=fp16"], "error: train.precision = fp16; allowed on a CPU: auto, fp32, bf16"),
    ],
)
def test_a_job_that_cannot_be_is_one_line_and_2(job: Path, tmp_path: Path, overrides: list[str], expected: str) -> None:
    group = start(job, tmp_path / "run", 1, [*ROBERTA, *overrides])
    assert group.wait() == [2]
    assert expected in group.output() and "Traceback" not in group.output()


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small RoBERTa on text that says the same again and again."""
    folder = tmp_path_factory.mktemp("learned")
    (folder / "text.txt").write_text("the cat says miau.\na dog barks at it.\n" * 300)
    made = prepare.main([str(folder / "text.txt"), "--out", str(folder / "data"), "--train-vocab", "281", "--lines"])
    assert made == 0
    path = folder / "job.toml"
    path.write_text(f'[data]\npath = "{folder / "data"}"\n[train]\nprecision = "fp32"\n')
    sizes = ["model.n_layer=2", "model.n_head=2", "model.n_embd=32", "train.micro_batch=8"]
    start(path, folder / "run", 1, [*ROBERTA, *sizes, *LEARNS, "train.steps=150"]).done()
    return folder / "run"


def test_sampling_fills_the_masks(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(learned), "--prompt", "the cat says <mask>.", "--temperature", "0"]
    assert sample.main(arguments) == 0
    text, *likely = capsys.readouterr().out.splitlines()
    assert text == "the cat says miau."
    assert len(likely) == 1 and likely[0].startswith("<mask> 1: ' miau' ") and likely[0].count("%") == 5
    assert sample.main([str(learned), "--prompt", "the <mask> says <mask>", "--seed", "2"]) == 0
    filled = capsys.readouterr().out
    assert filled.startswith("the ") and "<mask> 2: " in filled and "<|endoftext|>" not in filled
    assert sample.main([str(learned), "--prompt", "the <mask> says <mask>", "--seed", "2"]) == 0
    assert capsys.readouterr().out == filled
    records = [json.loads(line) for line in (learned / "samples.jsonl").read_text().splitlines()]
    assert records[0]["text"] == "the cat says miau." and records[0]["prompt"] == "the cat says <mask>."


def test_a_prompt_that_cannot_be_filled_is_one_line_and_2(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for prompt, expected in (
        (
            "the cat",
            "error: --prompt 'the cat': no <mask> in it, and this model fills masks; allowed: a text with <mask>\n",
        ),
        ("<mask>" + " x" * 40, "error: --prompt: 81 tokens; allowed: at most 22\n"),
    ):
        assert sample.main([str(learned), "--prompt", prompt]) == 2
        got = capsys.readouterr()
        assert got.err == expected and not got.out
    before = (learned / "samples.jsonl").read_text() if (learned / "samples.jsonl").exists() else ""
    assert "x x x" not in before
