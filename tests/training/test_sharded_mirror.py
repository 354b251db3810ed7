"""Checkpoints in shards and their mirror: whichever is newest and whole is gone on from, on any number of ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")

from bucket_servers import Server
from gloo_ranks import TINY, Group, lines, losses, one_by_one, start
from polling import until

from training import manifest
from training.checkpoint import files as checkpoint
from training.store import bucket, mirror_process, transfer
from training.store.packed_lines import PackedLines

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

FSDP = ["train.parallel=fsdp", "model.architecture=llama", "model.n_kv_head=1", "model.dropout=0"]


def train(job: Path, run: Path, there: Path, size: int, *more: str) -> Group:
    """Ranks whose mirror is a directory; each has a disk of its own, the first one's is `run`."""
    runs = [run, *(run.parent / f"node{rank}" / run.name for rank in range(1, size))]
    return start(
        job, runs if size > 1 else run, size, [*FSDP, f"checkpoint.mirror=file://{there}", *more], before=one_by_one
    )


def step(run: Path, number: int) -> Path:
    return checkpoint.folder_of(run / "checkpoints", number)


def flip(path: Path) -> None:
    """Alter one bit; whatever else is a hard link to the file keeps it as it was."""
    raw = path.read_bytes()
    path.unlink()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


@pytest.fixture(scope="module")
def first(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 8 steps on two ranks, `a/run`, its mirror `there/run`, and the job."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "job.toml").write_text(TINY.format(data=data))
    train(folder / "job.toml", folder / "a" / "run", folder / "there", 2, "checkpoint.every=2").done()
    return folder


@pytest.fixture
def again(first: Path, tmp_path: Path) -> Path:
    """A copy of `first`, to be altered."""
    return Path(shutil.copytree(first, tmp_path / "again"))


def test_the_mirror_has_every_shard_and_no_more_than_is_kept(first: Path) -> None:
    run, mirror = first / "a" / "run", first / "there" / "run"
    names = {path.name for path in (mirror / "checkpoints").iterdir()}
    assert names == {"step-000006", "step-000008"}, "older ones are removed, and their folders"
    assert [path.name for path in (mirror / "best").iterdir()] == ["step-000008"]
    for mine, copied in ((step(run, 8), step(mirror, 8)), (run / "best", mirror / "best" / "step-000008")):
        checkpoint.verify(copied)
        assert (copied / "model-00002-of-00002.safetensors").exists()
        assert {p.name: p.read_bytes() for p in mine.iterdir()} == {p.name: p.read_bytes() for p in copied.iterdir()}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_lost_disk_is_gone_on_after_on_any_number_of_ranks(first: Path, again: Path, size: int) -> None:
    shutil.rmtree(again / "a")
    job, there = again / "job.toml", again / "there"
    group = train(job, again / "b" / "run", there, size, "--resume", "train.steps=10", "train.decay_steps=8")
    group.done()
    assert "step-000008 fetched from" in group.output(0) and "going on from step 8" in group.output(0)
    whole = again / "whole" / "run"
    shutil.copytree(first / "a" / "run", whole)
    start(job, whole, 2, [*FSDP, "train.steps=10", "train.decay_steps=8"]).done()
    found = losses(again / "b" / "run")
    assert found == (losses(whole) if size == 2 else pytest.approx(losses(whole), rel=2e-5)), "from step 1 on"
    checkpoint.verify(step(there / "run", 10))
    assert (again / "b" / "run" / "best" / "manifest.json").exists()


@pytest.mark.parametrize("fault", ["missing", "torn"])
def test_without_its_lines_of_metrics_a_mirror_is_gone_on_from_all_the_same(again: Path, fault: str) -> None:
    """One that an older Trainyard has filled has none."""
    shutil.rmtree(again / "a")
    sent = again / "there" / "run" / mirror_process.METRICS_SENT
    if fault == "torn":
        sent.write_bytes(sent.read_bytes()[:-20])
    else:
        sent.unlink()
    group = train(again / "job.toml", again / "b" / "run", again / "there", 1, "--resume", "train.steps=9")
    group.done()
    assert [line["step"] for line in lines(again / "b" / "run")] == [9]
    assert ("metrics.jsonl.gz cannot be read, the curve begins after step 8: " in group.output()) == (fault == "torn")
    assert sent.exists(), "this run has sent its own"


@pytest.mark.parametrize("disk", ["older", "altered", "same"])
def test_the_newest_whole_one_is_taken_from_the_disk_or_the_mirror(again: Path, disk: str) -> None:
    run, there = again / "a" / "run", again / "there"
    if disk == "older":
        shutil.rmtree(step(run, 8))
    elif disk == "altered":
        flip(step(run, 8) / "model-00002-of-00002.safetensors")
    group = train(again / "job.toml", run, there, 2, "--resume", "train.steps=9")
    group.done()
    assert "going on from step 8, verified on disk" in group.output(0)
    assert ("step-000008 fetched from" in group.output(0)) == (disk != "same")
    assert ("skipped checkpoint of step 8" in group.output(0)) == (disk == "altered")
    assert losses(run).keys() == set(range(1, 10))


@pytest.mark.parametrize("fault", ["altered", "lost", "no manifest"])
def test_one_in_the_mirror_without_a_good_shard_is_skipped_and_later_mended(again: Path, fault: str) -> None:
    run, there = again / "a" / "run", again / "there"
    shutil.rmtree(step(run, 8))
    shard = step(there / "run", 8) / "optimizer-00001-of-00002.safetensors"
    if fault == "altered":
        flip(shard)
    else:
        (shard if fault == "lost" else shard.with_name(manifest.NAME)).unlink()
    group = train(again / "job.toml", run, there, 2, "--resume")
    group.done()
    assert "going on from step 6, verified on disk" in group.output(0)
    assert ("warning: skipped step-000008 of the mirror: " in group.output(0)) == (fault != "no manifest")
    checkpoint.verify(step(there / "run", 8))


def test_a_mirror_that_cannot_be_asked_is_a_warning_if_the_disk_has_a_checkpoint(again: Path) -> None:
    run, there = again / "a" / "run", again / "there"
    shutil.rmtree(there / "run")
    (there / "run").touch()
    group = train(again / "job.toml", run, there, 2, "--resume", "train.steps=9")
    group.done()
    wrong = f"file://{there}/run: NotADirectoryError"
    assert (
        f"warning: going on from step 8; whether the mirror has a newer one is not known: rank 0 (node0): {wrong}"
        in group.output(0)
    )
    assert "going on from step 8, verified on disk" in group.output(0)
    assert "checkpoint of step-000009 is not mirrored" in group.output(0)
    shutil.rmtree(run / "checkpoints")
    group = train(again / "job.toml", run, there, 2, "--resume", "train.steps=9")
    assert group.wait() == [1, 1]
    assert f"error: rank 0 (node0): {wrong}" in group.output(1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_run_of_that_name_uses_no_mirror_that_is_not_its_own(again: Path) -> None:
    """Nor does it after a restart, with or without a checkpoint on its own disk."""
    run, there, job = again / "b" / "run", again / "there", again / "job.toml"
    before = contents(there)
    group = train(job, run, there, 2, "train.steps=100000", "checkpoint.every=100000", "train.eval_every=100000")
    until(lambda: (run / "metrics.jsonl").exists() and lines(run))
    group.kill()
    assert not list(run.glob("checkpoints/step-*"))
    for steps in (4, 6):
        group = train(job, run, there, 2, "--resume", f"train.steps={steps}", "train.seed=7")
        group.done()
        assert f"warning: file://{there}/run belongs to another run of that name and is not " in group.output(0)
        assert "fetched from" not in group.output(0)
        assert losses(run).keys() == set(range(1, steps + 1))
    assert "going on from step 4" in group.output(0)
    assert contents(there) == before


def test_one_without_its_claim_takes_nothing_newer_from_the_mirror(again: Path) -> None:
    """As a head in the place of a lost one: what is there may be another run's, what is on the nodes is not."""
    run = again / "a" / "run"
    shutil.rmtree(step(run, 8))
    (run / "mirror.json").unlink()
    group = train(again / "job.toml", run, again / "there", 2, "--resume")
    group.done()
    assert "not asked for a newer checkpoint: it may be another run's" in group.output(0)
    assert "going on from step 6" in group.output(0)


def test_what_a_failed_upload_left_gives_way_before_the_next_one(
    first: Path, again: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a bucket that was full once, with room for the checkpoints that are kept and one more, stays full."""
    steps = again / "there" / "run" / "checkpoints"
    torn = shutil.copytree(steps / "step-000008", steps / "step-000007")
    (torn / manifest.NAME).unlink()
    shutil.copytree(first / "a" / "run" / "checkpoints" / "step-000008", again / "step-000009")
    seen: list[set[str]] = []
    push = transfer.push

    def watched(*given: Any, **rest: Any) -> transfer.Moved:
        seen.append({path.name for path in steps.iterdir()})
        return push(*given, **rest)

    monkeypatch.setattr(transfer, "push", watched)
    place = bucket.open_folder(f"file://{again}/there/run")
    mirror_process.send(place, "checkpoints", again / "step-000009", 2, again, PackedLines())
    assert seen == [{"step-000006", "step-000008"}]
    assert {path.name for path in steps.iterdir()} == {"step-000008", "step-000009"}


def test_a_full_bucket_is_said_and_the_training_goes_on(first: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("mounting needs root")
    run, there = tmp_path / "run", tmp_path / "there"
    there.mkdir()
    size = sum(path.stat().st_size for path in step(first / "a" / "run", 8).iterdir())
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size * 5 // 2}", "tmpfs", there], check=True)
    try:
        group = train(first / "job.toml", run, there, 2, "train.eval_every=100")
        group.done()
        full = "is not mirrored, next attempt at the next one: file://"
        said = [line for line in group.output(0).splitlines() if full in line]
        assert said and all(line.endswith(": the disk is full") for line in said), said
        whole = [path for path in (there / "run" / "checkpoints").iterdir() if (path / manifest.NAME).exists()]
        assert len(whole) == 2
        for path in whole:
            checkpoint.verify(path)
    finally:
        subprocess.run(["umount", there], check=True)
    assert losses(run) == losses(first / "a" / "run")


def test_a_rank_that_is_killed_while_the_mirror_is_sent(
    first: Path, tmp_path: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing torn is taken for whole, and the run goes on from what is in the bucket on another number of ranks."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    environment = dict(s3.environment)
    mirror, runs = f"{s3.url}/killed", [tmp_path / name / "run" for name in ("node0", "node1")]
    keys = [*FSDP, f"checkpoint.mirror={mirror}"]
    start(first / "job.toml", runs, 2, [*keys, "train.steps=4"], environment=environment).done()
    there = bucket.open_folder(f"{mirror}/run/checkpoints")
    assert "step-000004" in there.folders()
    s3.wire.rate = 50e3  # a checkpoint takes seconds
    group = start(first / "job.toml", runs, 2, [*keys, "train.steps=100000"], environment=environment)
    until(lambda: any(len(there.at(name).files()) > 1 for name in there.folders() if name > "step-000004"))
    group.processes[1].kill()
    assert group.wait(30)[0] == 1
    assert "rank 1 (node1)" in group.output(0)
    s3.wire.reset()
    time.sleep(0.5)  # what is on the wire
    whole = [name for name in there.folders() if transfer.complete_manifest(there.at(name))]
    assert "step-000004" in whole
    for run in runs:
        shutil.rmtree(run)
    last = int(max(whole)[-6:])
    group = start(
        first / "job.toml", runs[0], 3, [*keys, f"train.steps={last + 2}", "--resume"], environment=environment
    )
    group.done()
    assert f"going on from step {last}, verified on disk" in group.output(0)
    transfer.pull(there.at(f"step-{last + 2:06d}"), tmp_path / "pulled")
    checkpoint.verify(tmp_path / "pulled")
