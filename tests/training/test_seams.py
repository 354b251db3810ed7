"""The interfaces of a model and of a checkpoint: other models through the same loop, shards, and runs of before."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

import byte_models
import torch
from gloo_ranks import TINY, lines, losses, start

from training import manifest, models, sample
from training.checkpoint import files as checkpoint
from training.checkpoint.files import CheckpointError

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

FORMAT_1 = Path(__file__).parent / "run_of_format_1"
"""A run of 8 steps, as the code wrote it that knew no model but GPT-2: its metrics, and its checkpoint of step 4."""
FORMAT_1_KEYS = ["model.n_layer=1", "model.n_embd=8", "checkpoint.every=4", "checkpoint.keep=3"]


@pytest.fixture
def architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, where in byte_models.NAMES.items():
        monkeypatch.setitem(models.ARCHITECTURES, name, where)


def back_to(run: Path, step: int, copy: Path) -> Path:
    """A copy of a run as if it had been killed after this step's checkpoint."""
    shutil.copytree(run, copy)
    for later in checkpoint.steps(copy / "checkpoints"):
        if later > step:
            shutil.rmtree(checkpoint.folder_of(copy / "checkpoints", later))
    return checkpoint.folder_of(copy / "checkpoints", step)


def digest(run: Path, step: int) -> str:
    return str(checkpoint.read_state(checkpoint.folder_of(run / "checkpoints", step))["parameters"])


@pytest.mark.usefixtures("architectures")
@pytest.mark.parametrize("name", byte_models.NAMES)
def test_another_model_is_trained_resumed_and_read_by_the_same_loop(job: Path, tmp_path: Path, name: str) -> None:
    keys = [f"model.architecture={name}", "train.precision=auto", "checkpoint.keep=4"]
    one, three = tmp_path / "one", tmp_path / "three"
    for run, size, more in ((one, 1, ["model.dropout=0"]), (three, 3, ["model.dropout=0"]), (tmp_path / "run", 2, [])):
        start(job, run, size, [*keys, *more], before=byte_models.add_to_table).done()
    assert losses(three) == pytest.approx(losses(one), rel=2e-5)
    run, again = tmp_path / "run", tmp_path / "again"
    assert losses(run)[8] < losses(run)[1] < math.log(64) + 1
    assert ("val_bits_per_byte" in lines(run)[-1]) == (name == "bytes")
    back_to(run, 4, again)
    start(job, again, 2, keys, before=byte_models.add_to_table).done()
    assert losses(again) == losses(run) and digest(again, 8) == digest(run, 8)
    model = sample.load(checkpoint.find(run))
    assert type(model).__name__ == byte_models.NAMES[name].split(":")[1]
    text = list(sample.generate(model, [1, 2], 40, temperature=1.0, top_k=0, seed=1))
    assert len(text) == 40 and text == list(sample.generate(model, [1, 2], 40, temperature=1.0, top_k=0, seed=1))
    group = start(job, again, 1, ["train.steps=9"])
    assert group.wait() == [2]
    assert f"error: model.architecture = gpt2; allowed: {name}, as in this run's checkpoints" in group.output()


def shard(folder: Path, shards: int) -> None:
    """Writes a checkpoint anew as several ranks would that each hold a part of the tensors."""
    parts = {part: checkpoint.read_part(folder, part) for part in ("model", "optimizer")}
    small = {name: (folder / name).read_bytes() for name in ("rng.safetensors", "state.json")}
    temporary = checkpoint.begin(folder)
    listed: dict[str, object] = {**checkpoint.write_files(temporary, small)}
    for number in range(shards):
        files = {}
        for part, tensors in parts.items():
            chosen = sorted(tensors)[number::shards]
            files[checkpoint.part_file(part, number, shards)] = {name: tensors[name] for name in chosen}
        listed |= checkpoint.write_files(temporary, files)
    assert checkpoint.read_part(folder, "model").keys() == parts["model"].keys(), "the old one stays until the commit"
    checkpoint.commit(folder, listed)  # type: ignore[arg-type]


def test_a_checkpoint_of_several_shards_is_read_like_one(job: Path, tmp_path: Path) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    start(job, run, 1, ["checkpoint.keep=4"]).done()
    folder = back_to(run, 4, again)
    shutil.rmtree(again / "best")
    before = sample.load(folder).state_dict()
    shard(folder, 3)
    assert (folder / "model-00002-of-00003.safetensors").exists() and not (folder / "model.safetensors").exists()
    after = sample.load(checkpoint.find(again)).state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    torn = tmp_path / "torn" / folder.name
    shutil.copytree(folder, torn)
    (torn / "optimizer-00003-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="optimizer-00003-of-00003"):
        checkpoint.verify(torn)
    start(job, again, 1, ["checkpoint.keep=4"]).done()
    assert losses(again) == losses(run) and digest(again, 8) == digest(run, 8)


def test_shards_without_a_commit_are_no_checkpoint(tmp_path: Path) -> None:
    temporary = checkpoint.begin(checkpoint.folder_of(tmp_path, 5))
    checkpoint.write_files(temporary, {checkpoint.part_file("model", 0, 2): {"a": torch.ones(3)}})
    assert checkpoint.newest_verified(tmp_path, print) is None
    checkpoint.tidy(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_of_before_goes_on_from_its_checkpoint(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FORMAT_1, run)
    (tmp_path / "tiny.toml").write_text(TINY.format(data=data))
    before = losses(run)
    old = checkpoint.read_part(run / "checkpoints" / "step-000004", "model")
    group = start(tmp_path / "tiny.toml", run, 1, FORMAT_1_KEYS)
    group.done()
    assert "going on from step 4" in group.output()
    assert losses(run) == pytest.approx(before, rel=1e-4), "the same on another processor, but for the last digits"
    model = sample.load(run / "checkpoints" / "step-000004")
    assert all(torch.equal(value, old[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_without_an_architecture_goes_on_bit_for_bit(job: Path, tmp_path: Path) -> None:
    """As before there was a choice: the same files, and fewer keys in state.json."""
    run, again = tmp_path / "run", tmp_path / "again"
    start(job, run, 3, ["checkpoint.keep=4"]).done()
    folder = back_to(run, 4, again)
    state = checkpoint.read_state(folder)
    added = [state.pop(name) for name in ("architecture", "optimizer", "compile")]
    assert added == ["gpt2", "adamw", "false"]
    assert state.keys() == checkpoint.read_state(FORMAT_1 / "checkpoints" / "step-000004").keys()
    content = manifest.parse(folder / "manifest.json")
    assert content.keys() == manifest.parse(FORMAT_1 / "checkpoints" / "step-000004" / "manifest.json").keys()
    raw = (json.dumps(state, indent=1, sort_keys=True) + "\n").encode()
    content["files"] |= checkpoint.write_files(folder, {"state.json": raw})
    (folder / "manifest.json").write_text(manifest.render(content))
    start(job, again, 3, ["checkpoint.keep=4"]).done()
    assert losses(again) == losses(run) and digest(again, 8) == digest(run, 8)
