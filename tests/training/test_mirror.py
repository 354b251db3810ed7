"""Checkpoints in a bucket: whole or not there, whatever becomes of the server, the trainer or the node's disk."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")

import bucket_servers
from bucket_servers import Server
from gloo_ranks import Group, lines, losses, one_by_one, start
from polling import until

from training import manifest
from training.checkpoint import files as checkpoint
from training.store import bucket, mirror_process, transfer

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]
KINDS = {"s3": bucket_servers.s3, "blobs": bucket_servers.blobs}


@pytest.fixture
def shelf(request: pytest.FixtureRequest, s3: Server, monkeypatch: pytest.MonkeyPatch) -> bucket.BucketFolder:
    """This test's own folder of the bucket, as this process sees it."""
    s3.wire.reset()
    use(s3.environment, monkeypatch)
    return bucket.open_folder(f"{s3.url}/{request.node.name}")


def use(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def train(job: Path, run: Path, shelf: bucket.BucketFolder, size: int = 1, *more: str, each: bool = False) -> Group:
    overrides = [f"checkpoint.mirror={shelf.url}", *more]
    return start(job, run, size, overrides, environment=_environment(), before=one_by_one if each else None)


def _environment() -> dict[str, str]:
    """Ranks are forked from a process that was there before the server."""
    import os

    return {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "AZURE_"))}


def steps(shelf: bucket.BucketFolder, kind: str = "checkpoints") -> list[str]:
    """Those that are whole in the mirror of `run`."""
    there = shelf.at("run").at(kind)
    return [name for name in there.folders() if transfer.complete_manifest(there.at(name))]


def later(run: Path, step: int) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(run) if line["step"] > step}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_lost_disk_is_gone_on_after_bit_for_bit(
    kind: str, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KINDS[kind](tmp_path / "server") as server:
        use(server.environment, monkeypatch)
        shelf = bucket.open_folder(f"{server.url}/runs")
        start(job, tmp_path / "whole", 2).done()
        train(job, tmp_path / "a" / "run", shelf, 2, each=True).done()
        assert steps(shelf) == ["step-000006", "step-000008"]
        assert len(steps(shelf, "best")) == 1
        last = shelf.at("run").at("checkpoints").at("step-000008")
        for name in last.files():  # as if the job had been ended at the sixth step
            last.remove(name)
        group = train(job, tmp_path / "b" / "run", shelf, 2, "--resume")
        group.done()
        assert "step-000006 fetched from" in group.output(0)
        assert "going on from step 6, verified on disk" in group.output(0)
        assert losses(tmp_path / "b" / "run") == losses(tmp_path / "whole"), "the lines of the lost disk's steps, too"
        checkpoint.verify(tmp_path / "b" / "run" / "best")


def test_what_is_in_the_bucket_is_what_is_on_disk(job: Path, tmp_path: Path, shelf: bucket.BucketFolder) -> None:
    run = tmp_path / "run"
    train(job, run, shelf, 2, "checkpoint.every=1", each=True).done()
    assert steps(shelf) == ["step-000007", "step-000008"]
    for name in steps(shelf):
        transfer.pull(shelf.at("run").at("checkpoints").at(name), tmp_path / name)
        checkpoint.verify(tmp_path / name)
        local = run / "checkpoints" / name
        assert {path.name: path.read_bytes() for path in local.iterdir()} == {
            path.name: path.read_bytes() for path in (tmp_path / name).iterdir()
        }
    best = steps(shelf, "best")
    assert best == [f"step-{json.loads((run / 'best' / 'state.json').read_text())['step']:06d}"]
    assert not (run / mirror_process.STAGING / "to").exists()


def test_a_server_that_is_away_for_a_while(job: Path, tmp_path: Path, shelf: bucket.BucketFolder, s3: Server) -> None:
    """The training goes on at its speed, says what is wrong, and the next checkpoint is there."""
    run = tmp_path / "run"
    overrides = ["train.steps=100000", "checkpoint.every=50", "train.eval_every=1000"]
    group = train(job, run, shelf, 1, *overrides)
    until(lambda: len(steps(shelf)) >= 2)
    s3.wire.cut()
    until(lambda: "is not mirrored, next attempt at the next one" in group.output(), 90)
    output = group.output()
    assert f"{shelf.url}/run" in output and "no answer" in output
    before = lines(run)[-1]["step"]
    s3.wire.reset()
    until(lambda: steps(shelf) and int(steps(shelf)[-1][-6:]) > before, 90)
    group.processes[0].terminate()
    assert group.wait(60) == [0]
    last = lines(run)[-1]["step"]
    assert steps(shelf)[-1] == f"step-{last:06d}", group.output()
    assert len(steps(shelf)) == 2
    waits = [line["seconds"].get("checkpoint", 0.0) for line in lines(run)]
    assert sorted(waits)[-3] < 2, "a checkpoint waited for the bucket"


@pytest.mark.soak
def test_an_end_without_a_server_is_soon_and_good(
    job: Path, tmp_path: Path, shelf: bucket.BucketFolder, s3: Server
) -> None:
    s3.wire.cut()
    run = tmp_path / "run"
    began = time.monotonic()
    group = train(job, run, shelf, 2)
    assert group.wait(150) == [0, 0]
    assert "warning: checkpoint of step-" in group.output(0) and "no answer" in group.output(0)
    assert "done" in group.output(0)
    assert checkpoint.newest_verified(run / "checkpoints", print) == 8
    assert time.monotonic() - began < 120


def has_files(there: bucket.BucketFolder, count: int) -> bool:
    return sum(len(there.at(name).files()) for name in there.folders()) >= count


def test_killed_while_it_sends_nothing_torn_is_taken_for_whole(
    job: Path, tmp_path: Path, shelf: bucket.BucketFolder, s3: Server
) -> None:
    """SIGKILL of the trainer, at moments of the sending; then its disk is lost as well."""
    start(job, tmp_path / "whole").done()
    for number, count in enumerate((1, 3, 4, 5)):
        place = shelf.at(str(number))
        run = tmp_path / str(number) / "run"
        s3.wire.reset()
        s3.wire.rate = 100e3  # a checkpoint takes a second
        group = train(job, run, place, 1, "train.steps=8", "checkpoint.every=1")
        there = place.at("run").at("checkpoints")
        until(partial(has_files, there, count))
        group.kill()
        s3.wire.reset()
        time.sleep(0.5)
        for name in there.folders():
            if transfer.complete_manifest(there.at(name)):
                transfer.pull(there.at(name), tmp_path / f"{number}-{name}")
                checkpoint.verify(tmp_path / f"{number}-{name}")
        shutil.rmtree(run)
        group = train(job, run, place, 1, "--resume")
        group.done()
        begin = lines(run)[0]["step"] if (run / "metrics.jsonl").exists() and lines(run) else 9
        assert later(run, 0) == {step: loss for step, loss in losses(tmp_path / "whole").items() if step >= begin}
        assert steps(place)[-1] == "step-000008"


def test_its_own_process_may_be_killed(job: Path, tmp_path: Path, shelf: bucket.BucketFolder) -> None:
    run = tmp_path / "run"
    group = train(job, run, shelf, 1, "train.steps=100000", "checkpoint.every=20", "train.eval_every=1000")
    until(lambda: len(steps(shelf)) >= 1)
    before = steps(shelf)[-1]
    import psutil

    for child in psutil.Process(group.processes[0].pid).children():
        if "training.store.mirror_process" in child.cmdline():
            child.send_signal(signal.SIGKILL)
    until(lambda: steps(shelf)[-1:] > [before])
    group.processes[0].terminate()
    assert group.wait(60) == [0]
    assert steps(shelf)[-1] == f"step-{lines(run)[-1]['step']:06d}"


def test_an_altered_one_is_skipped_and_the_one_before_is_taken(
    job: Path, tmp_path: Path, shelf: bucket.BucketFolder
) -> None:
    train(job, tmp_path / "a" / "run", shelf, each=True).done()
    newest = shelf.at("run").at("checkpoints").at("step-000008")
    content = newest.read("model.safetensors")
    assert content
    newest.write("model.safetensors", content[:-1] + bytes([content[-1] ^ 1]))
    group = train(job, tmp_path / "b" / "run", shelf, 1, "--resume")
    group.done()
    assert "warning: skipped step-000008 of the mirror: " in group.output()
    assert "going on from step 6" in group.output()
    assert steps(shelf) == ["step-000006", "step-000008"]


def test_a_run_never_touches_another_one_s_of_its_name(job: Path, tmp_path: Path, shelf: bucket.BucketFolder) -> None:
    """A bucket that outlives its cluster has runs of the same names as the next cluster's."""
    train(job, tmp_path / "a" / "run", shelf).done()
    before = {name: shelf.at("run").at("checkpoints").at(name).read(manifest.NAME) for name in steps(shelf)}
    group = train(job, tmp_path / "b" / "run", shelf, 1, "train.seed=7")
    group.done()
    assert "step 1/" in group.output()  # from the beginning
    assert "run belongs to another run of that name and is not changed" in group.output()
    assert {name: shelf.at("run").at("checkpoints").at(name).read(manifest.NAME) for name in steps(shelf)} == before


def test_what_is_here_comes_before_what_is_there(job: Path, tmp_path: Path, shelf: bucket.BucketFolder) -> None:
    run = tmp_path / "run"
    train(job, run, shelf, 1, "train.steps=8").done()
    group = train(job, run, shelf, 1, "--resume", "train.steps=10")
    group.done()
    assert "fetched from" not in group.output()
    assert steps(shelf) == ["step-000008", "step-000010"]


def test_a_mirror_that_cannot_be_asked_is_no_beginning_from_nothing(
    job: Path, tmp_path: Path, shelf: bucket.BucketFolder, s3: Server
) -> None:
    s3.wire.cut()
    group = train(job, tmp_path / "run", shelf, 2, "--resume", "train.timeout=5")
    assert group.wait(120) == [1, 1]
    assert f"error: rank 0 (node0): {shelf.url}/run: no answer" in group.output(1)
    assert "step 1/" not in group.output()
