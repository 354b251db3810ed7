"""Checkpoints that several ranks write together: whole or not there, on any disks, for any number of ranks."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import saving_ranks
import torch
from gloo_ranks import Group, losses, start
from mutations import mutate
from polling import until

from training.checkpoint import files as checkpoint
from training.checkpoint.files import CheckpointError
from training.checkpoint.reader import Part
from training.models import hugging_face
from training.parallel.shard import Shard

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

FSDP = ["train.parallel=fsdp", "checkpoint.keep=4"]


def sharded(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    """Writes tensors as the ranks of a sharded model do."""
    files = {
        checkpoint.part_file("model", index, shards): {
            name: rows for name, tensor in tensors.items() if len(rows := Shard(index, shards).of(tensor))
        }
        for index in range(shards)
    }
    checkpoint.write(folder, files, {"step": 1})


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 8])
def test_any_number_of_readers_gets_the_rows_of_any_number_of_writers(tmp_path: Path, shards: int) -> None:
    torch.manual_seed(0)
    tensors = {"w": torch.randn(7, 3), "b": torch.randn(2), "long": torch.randn(16, 2, 2)}
    sharded(tmp_path / "step-000001", tensors, shards)
    part = Part(tmp_path / "step-000001", "model")
    assert set(part) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(part[name], tensor) and part.shape(name) == tuple(tensor.shape)
        for count in (1, 2, 3, 4, 9):
            rows = [part.rows(name, *Shard(index, count).rows(len(tensor))) for index in range(count)]
            assert torch.equal(torch.cat(rows), tensor) and all(r.shape[1:] == tensor.shape[1:] for r in rows)


def test_100_mutations_are_detected_and_the_one_before_is_used(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(40, 30), "b": torch.randn(7)}
    for step in (10, 20):
        sharded(checkpoint.folder_of(tmp_path, step), tensors, 4)
    newest = checkpoint.folder_of(tmp_path, 20)
    shutil.copytree(newest, tmp_path / "kept")
    names = sorted(path.name for path in newest.iterdir())
    assert len(names) == 6, "four shards, state.json, manifest.json"
    for seed in range(100):
        name = names[seed % len(names)]
        kind = mutate(newest / name, seed)
        warnings: list[str] = []
        assert checkpoint.newest_verified(tmp_path, warnings.append) == 10, (name, kind)
        assert len(warnings) == 1 and "skipped checkpoint of step 20" in warnings[0], (name, kind)
        shutil.copy(tmp_path / "kept" / name, newest / name)
    assert checkpoint.newest_verified(tmp_path, print) == 20
    (newest / "model-00003-of-00004.safetensors").unlink()
    with pytest.raises(CheckpointError, match="the shards of the model are not all there"):
        Part(newest, "model")


def is_beyond(there: Path, step: int) -> bool:
    """Whether there is a checkpoint of a later step."""
    return max(checkpoint.steps(there), default=0) > step


def is_writing(there: Path, files: int) -> bool:
    """Whether an unfinished checkpoint has so many files."""
    with suppress(FileNotFoundError):  # it was finished meanwhile
        return any(len(list(path.iterdir())) >= files for path in there.glob("*.tmp") if path.is_dir())
    return False


def are_stopped(group: Group) -> bool:
    stats = [Path(f"/proc/{process.pid}/stat").read_text() for process in group.processes]
    return all(stat.rpartition(") ")[2].startswith("T") for stat in stats)


def stop_in_a_save(group: Group, there: Path, files: int) -> None:
    """Stop all ranks while a checkpoint that has so many files is not finished: not a moment later."""
    while True:
        until(partial(is_writing, there, files), 60, group.output)
        for process in group.processes:
            os.kill(process.pid, signal.SIGSTOP)
        until(partial(are_stopped, group), 60)
        if is_writing(there, files):
            return
        for process in group.processes:
            os.kill(process.pid, signal.SIGCONT)


def kill_one(group: Group, rank: int, seconds: float) -> None:
    """Kill one rank, and the others after some time, in which they do what they do without it."""
    group.processes[rank].kill()
    for process in group.processes:
        os.kill(process.pid, signal.SIGCONT)
    time.sleep(seconds)
    group.kill()


@pytest.mark.parametrize("disks", ["shared", "own"])
def test_25_kills_of_ranks_that_save_leave_none_unloadable(tmp_path: Path, disks: str) -> None:
    """13 of them come while files of a checkpoint are written. In some a single rank is killed, and the others go on
    for a moment. With both disks 50 kills."""
    run = tmp_path / "node0"
    folders = [run] * 3 if disks == "shared" else [tmp_path / f"node{rank}" for rank in range(3)]
    choose, there = random.Random(disks), run / "checkpoints"
    before, kinds = 0, Counter[tuple[bool, bool]]()
    for number in range(25):
        group = saving_ranks.start(folders, before + 1)
        until(partial(is_beyond, there, before), 60, group.output)
        in_a_save, alone = number % 2 == 0, choose.random() < 0.5
        if in_a_save:
            stop_in_a_save(group, there, choose.randrange(1, 4))
        else:
            time.sleep(choose.random() * 0.05)
        done = max(checkpoint.steps(there))
        if alone:
            kill_one(group, choose.randrange(3), choose.random() * 0.3)
        else:
            group.kill()
            assert not in_a_save or list(there.glob("*.tmp")), "nobody has finished it"
        kinds[in_a_save, alone] += 1
        step = checkpoint.newest_verified(there, print)
        assert step is not None and step >= done, group.output()
        part = Part(checkpoint.folder_of(there, step), "model")
        rows = [saving_ranks.values(step, rank)["w"] for rank in range(3)]
        assert torch.equal(part["w"], torch.cat(rows)), number
        before = step
    assert kinds[True, True] + kinds[True, False] == 13 and min(kinds.values()) >= 4 and len(kinds) == 4, kinds
    if disks == "own":
        assert not (tmp_path / "node1" / "checkpoints").exists()


@pytest.mark.parametrize("disks", ["shared", "own"])
def test_a_disk_that_is_full_is_said_with_its_rank_and_leaves_the_one_before(tmp_path: Path, disks: str) -> None:
    run = tmp_path / "node0"
    folders = [run] * 3 if disks == "shared" else [tmp_path / f"node{rank}" for rank in range(3)]
    rank = 1 if disks == "shared" else 0
    group = saving_ranks.start(folders, 1, 2, full_at=rank)
    assert group.wait(60)[0] == 1
    assert "the disk is full" in group.output(0) and (f"rank {rank} (node{rank})" in group.output(0) or not rank)
    assert not list((run / "checkpoints").glob("*.tmp"))
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == (["step-000001"] if rank else [])


def back_to(run: Path, step: int, copy: Path) -> Path:
    """A copy of a run as if it had been killed after this step's checkpoint."""
    shutil.copytree(run, copy)
    for later in checkpoint.steps(copy / "checkpoints"):
        if later > step:
            shutil.rmtree(checkpoint.folder_of(copy / "checkpoints", later))
    return copy


def test_it_goes_on_with_any_number_of_ranks_in_shards_or_whole(job: Path, tmp_path: Path) -> None:
    """On the same number to the bit; else to 2e-5 of the loss in fp32."""
    keys = [*FSDP, "model.dropout=0"]
    run = tmp_path / "run"
    start(job, run, 2, keys).done()
    names = {path.name for path in (run / "checkpoints" / "step-000004").iterdir()}
    assert names >= {f"{part}-0000{n}-of-00002.safetensors" for part in ("model", "optimizer") for n in (1, 2)}
    same = back_to(run, 4, tmp_path / "same")
    group = start(job, same, 2, keys)
    group.done()
    assert "going on from step 4" in group.output(0) and losses(same) == losses(run)
    for size, more in ((3, []), (1, []), (2, ["train.parallel=ddp"])):
        other = back_to(run, 4, tmp_path / f"{size}{len(more)}")
        start(job, other, size, [*keys, *more]).done()
        assert losses(other) == pytest.approx(losses(run), rel=2e-5), (size, more)
    whole = back_to(tmp_path / "21", 6, tmp_path / "whole")
    assert (whole / "checkpoints" / "step-000006" / "model.safetensors").exists(), "of ddp"
    start(job, whole, 3, keys).done()
    assert losses(whole) == pytest.approx(losses(run), rel=2e-5)
    assert (whole / "checkpoints" / "step-000008" / "model-00003-of-00003.safetensors").exists()


def test_without_a_shared_disk_the_head_has_every_shard_and_others_get_theirs(job: Path, tmp_path: Path) -> None:
    whole, heads, schedule = tmp_path / "whole", tmp_path / "node0", ["train.decay_steps=8"]
    start(job, whole, 3, [*FSDP, *schedule, "train.steps=6"]).done()
    start(job, [heads, tmp_path / "node1", tmp_path / "node2"], 3, [*FSDP, *schedule, "train.steps=4"]).done()
    checkpoint.verify(heads / "checkpoints" / "step-000004")
    for name in ("model-00003-of-00003.safetensors", "optimizer-00002-of-00003.safetensors"):
        same = [(folder / "checkpoints" / "step-000004" / name).read_bytes() for folder in (heads, whole)]
        assert same[0] == same[1], name
    assert not list((tmp_path / "node1" / "checkpoints").glob("step-*"))
    start(job, [heads, tmp_path / "new1", tmp_path / "new2"], 3, [*FSDP, *schedule, "train.steps=6"]).done()
    assert losses(heads) == losses(whole)


def test_weights_put_together_of_shards_are_those_of_the_model(job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(job, run, 3, [*FSDP, "train.steps=3"]).done()
    folder = checkpoint.find(run)
    assert (folder / "model-00003-of-00003.safetensors").exists() and folder.name == "best"
    assert hugging_face.main([str(run), str(tmp_path / "weights")]) == 0
    from transformers import GPT2LMHeadModel

    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "weights").state_dict()
    assert torch.equal(theirs["transformer.wte.weight"], checkpoint.read_part(folder, "model")["tokens.weight"])
    assert torch.equal(
        theirs["transformer.h.1.mlp.c_fc.weight"], checkpoint.read_part(folder, "model")["blocks.1.mlp.up.weight"].t()
    )
