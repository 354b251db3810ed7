"""Checkpoints: whole or not there, whatever is done to the process, the disk or the files."""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import token_files
import torch
from gloo_ranks import Group, losses, start
from mutations import mutate
from polling import until

from training import job as jobs
from training import manifest, sample
from training.checkpoint import files as checkpoint
from training.checkpoint import state
from training.checkpoint.background import Saver
from training.checkpoint.files import CheckpointError
from training.data import token_set
from training.parallel.ddp import OneRank
from training.parallel.ranks import Ranks

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]


def files(value: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    torch.manual_seed(int(value))
    return {
        "model.safetensors": {"a": torch.randn(20, 30), "b": torch.randn(7).bfloat16(), "empty": torch.zeros(0, 3)},
        "optimizer.safetensors": {"exp_avg.a": torch.randn(20, 30), "step": torch.tensor(float(value))},
    }


def test_what_is_written_is_read_by_us_and_by_safetensors(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "step-000005", {**files(), "vocab": b"abc"}, {"step": 5})
    checkpoint.verify(tmp_path / "step-000005")
    for name, tensors in files().items():
        read = checkpoint.read_tensors(tmp_path / "step-000005" / name)
        assert read.keys() == tensors.keys()
        assert all(torch.equal(read[key], tensors[key]) and read[key].dtype == tensors[key].dtype for key in read)
    assert checkpoint.read_state(tmp_path / "step-000005") == {"step": 5}
    assert (tmp_path / "step-000005" / "vocab").read_bytes() == b"abc"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]


def test_200_mutations_are_detected_and_the_one_before_is_used(tmp_path: Path) -> None:
    for step in (10, 20):
        checkpoint.write(checkpoint.folder_of(tmp_path, step), files(step), {"step": step})
    newest = checkpoint.folder_of(tmp_path, 20)
    shutil.copytree(newest, tmp_path / "kept")
    names = sorted(path.name for path in newest.iterdir())
    for seed in range(200):
        name = names[seed % len(names)]
        kind = mutate(newest / name, seed)
        warnings: list[str] = []
        assert checkpoint.newest_verified(tmp_path, warnings.append) == 10, (name, kind)
        assert len(warnings) == 1
        assert warnings[0].startswith("warning: skipped checkpoint of step 20: "), (name, kind)
        shutil.copy(tmp_path / "kept" / name, newest / name)
    assert checkpoint.newest_verified(tmp_path, print) == 20


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", ".hidden", "manifest.json"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """Its checksums are right: without the check of the names, the file outside would be opened and accepted."""
    folder = checkpoint.folder_of(tmp_path, 1)
    checkpoint.write(folder, files(), {"step": 1})
    (tmp_path / "outside").write_text("outside")
    (folder / ".hidden").write_text("hidden")
    path = folder / name
    listed = {name: {"bytes": path.stat().st_size, "sha256": manifest.checksum(path)}}
    manifest.publish(folder / manifest.NAME, manifest.render({"format": 1, "files": listed}))
    with pytest.raises(CheckpointError, match="is not a plain file name"):
        checkpoint.verify(folder)


def test_a_link_out_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = checkpoint.folder_of(tmp_path, 1)
    checkpoint.write(folder, files(), {"step": 1})
    (folder / "model.safetensors").rename(tmp_path / "outside")
    (folder / "model.safetensors").symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="is a link that leads out of the folder"):
        checkpoint.verify(folder)


def test_at_least_two_stay_and_a_damaged_one_does_not_count(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=2)
    for step in range(1, 5):
        saver.save(files(step), {"step": step}, step=step, best=step == 3)
    saver.finish()
    assert checkpoint.steps(tmp_path / "checkpoints") == [4, 3]
    assert (tmp_path / "checkpoints" / "latest").read_text() == "4\n"
    assert checkpoint.read_state(tmp_path / "best") == {"step": 3}
    assert not (tmp_path / "best" / "optimizer.safetensors").exists()
    mutate(tmp_path / "checkpoints" / "step-000004" / "model.safetensors", 1)
    again = Saver(tmp_path, keep=2)
    again.verified.add(3)  # as found when resuming
    again.save(files(4), {"step": 4}, step=4, best=False)
    again.finish()
    assert checkpoint.steps(tmp_path / "checkpoints") == [4, 3]
    assert checkpoint.newest_verified(tmp_path / "checkpoints", print) == 4


def test_a_save_takes_the_values_of_its_moment(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=2)
    weight = torch.ones(1000, 1000)
    saver.save({"model.safetensors": {"w": weight}}, {}, step=1, best=False)
    weight.zero_()
    saver.finish()
    assert bool((checkpoint.read_tensors(tmp_path / "checkpoints/step-000001/model.safetensors")["w"] == 1).all())


class Touch:
    """Runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_a_pickle_is_refused_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, proof = tmp_path / "run", tmp_path / "ran"
    run.mkdir()
    evil = pickle.dumps(Touch(proof))
    (run / "ckpt.pt").write_bytes(evil)
    assert sample.main([str(run)]) == 2
    assert "ckpt.pt is not read: a pickle can run code" in capsys.readouterr().err
    checkpoint.write(run / "checkpoints" / "step-000001", {"model.safetensors": evil}, {"step": 1})
    with pytest.raises(CheckpointError):  # its checksums are right: it is still no safetensors file
        checkpoint.read_tensors(run / "checkpoints" / "step-000001" / "model.safetensors")
    assert not proof.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_said_and_leaves_the_one_before(small_disk: Path) -> None:
    saver = Saver(small_disk, keep=2)
    good = {"model.safetensors": {"w": torch.ones(50_000)}}
    saver.save(good, {"step": 1}, step=1, best=False)
    saver.save(good, {"step": 2}, step=2, best=False)
    with pytest.raises(CheckpointError, match=r"step-000002: the disk is full \(0\.\d\d GB left\)$"):
        saver.finish()
    assert "the disk is full" in saver.check()
    assert [path.name for path in (small_disk / "checkpoints").glob("step*")] == ["step-000001"]
    assert checkpoint.newest_verified(small_disk / "checkpoints", print) == 1


def test_a_full_disk_of_one_node_stops_the_job_on_all(job: Path, small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 200_000)
    group = start(job, [tmp_path / "run", small_disk], 2, ["train.steps=1000", "checkpoint.every=3"])
    assert group.wait() == [1, 1]
    # Agreed on at the next checkpoint, or said by that rank alone if its save has failed before.
    assert re.search(r"^error: rank 1 \(node1\)(:| failed:) .*the disk is full", group.output(0), re.M), group.output(0)
    assert not list((small_disk / "checkpoints").glob("*.tmp"))


def slow_writes(rank: int) -> None:
    """A save takes a while, so that a kill finds it at work."""
    import time

    original = checkpoint.write_pieces

    def slow(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, object]:
        time.sleep(0.03)
        return original(path, pieces)

    checkpoint.write_pieces = slow


def test_killed_during_saves_it_goes_on_bit_for_bit(job: Path, tmp_path: Path) -> None:
    """SIGKILL while files of a checkpoint are written, at moments that a seed chooses."""
    overrides = ["checkpoint.every=1", "train.steps=6"]
    start(job, tmp_path / "whole", 2, overrides).done()
    run = tmp_path / "run"
    choose = random.Random(0)
    for _ in range(4):
        group = start(job, run, 2, overrides, before=slow_writes)
        size = choose.randrange(1, 5)
        until(partial(has_ended_or_written, group, run, size))
        group.kill()
        if list(run.glob("checkpoints/step-??????")):
            assert checkpoint.newest_verified(run / "checkpoints", print) is not None
    start(job, run, 2, overrides).done()
    assert losses(run) == losses(tmp_path / "whole")
    assert not list(run.rglob("*.tmp"))


def has_ended_or_written(group: Group, run: Path, size: int) -> bool:
    return not group.alive() or any(len(list(path.iterdir())) >= size for path in listed(run) if path.is_dir())


def listed(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob("*.tmp"))


def test_what_stepped_aside_comes_back_after_a_kill(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "best", files(1), {"step": 1})
    (tmp_path / "best").rename(tmp_path / "best.old")  # killed between the two renames
    (tmp_path / "best.tmp").mkdir()
    checkpoint.tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    checkpoint.verify(tmp_path / "best")


def test_a_run_with_another_shape_or_other_tokens_is_refused(job: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(job, run, 1, ["train.steps=3"]).done()
    group = start(job, run, 1, ["model.n_embd=64"])
    assert group.wait() == [2]
    assert "error: model.n_embd = 64; allowed: 32, as in this run's checkpoints" in group.output()
    other = token_set.open(data)
    changed = other.train[:-1].copy()
    token_files.write(tmp_path / "other", train=changed, val=other.val, vocab_size=64, encoding={"name": "gpt2"})
    group = start(job, run, 1, [f"data.path={tmp_path / 'other'}"])
    assert group.wait() == [2]
    assert "not the tokens that this run's checkpoints were trained on" in group.output()


def test_sampling_from_a_run(job: Path, data: Path, tmp_path: Path) -> None:
    text = token_set.open(data)
    tiny = state.fresh(jobs.load(job), text, torch.device("cpu"), initialise=True)
    ranks = Ranks(0, 1, 0, "node0", 20, torch.device("cpu"), "gloo", nodes=["node0"])
    parallel = OneRank(ranks)
    parallel.wrap(tiny, parallel.accelerator("no"))
    files, written = state.capture(tiny, parallel, ranks, text, to_resume=True)
    checkpoint.write(tmp_path / "run" / "checkpoints" / "step-000000", files, written)
    folder = checkpoint.find(tmp_path / "run")
    loaded = sample.load(folder)
    out = list(sample.generate(loaded, [1, 2], 10, temperature=1.0, top_k=5, seed=1))
    assert len(out) == 10
    assert max(out) < 64
