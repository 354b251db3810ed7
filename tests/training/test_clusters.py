"""One job on several clusters: groups of real ranks that share nothing but a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")

from bucket_servers import Server
from gloo_ranks import lines, losses, start
from meeting import cluster, equal, facts, outer_state, parameters, rounds
from polling import until

from training import manifest
from training.outer import quantise

pytest_plugins = ["training_fixtures"]

pytestmark = pytest.mark.acceptance


def test_one_cluster_with_plain_averaging_each_step_is_plain_training(job: Path, tmp_path: Path) -> None:
    plain, alone = tmp_path / "plain", tmp_path / "alone"
    start(job, plain).done()
    keys = ("outer.clusters=1", "outer.every=1", "outer.lr=1", "outer.momentum=0", "outer.bits=32")
    cluster(job, tmp_path / "bucket", alone, 1, *keys).done()
    assert list(losses(alone).values()) == pytest.approx(list(losses(plain).values()), rel=1e-5)
    mine, theirs = parameters(alone), parameters(plain)
    off = max(float((mine[name] - theirs[name]).abs().max()) for name in theirs)
    assert off < 1e-3, "AdamW makes more of a last digit where the gradient is almost 0"
    assert rounds(alone) == {number: [1] for number in range(1, 9)}
    again = tmp_path / "again"
    cluster(job, tmp_path / "bucket", again, 1, *keys).done()
    assert [line["step"] for line in lines(again)] == [8], "without its disk it takes what it has sent before"
    assert equal(parameters(again), mine)


@pytest.mark.parametrize("overlap, bits", [(0, 8), (1, 4)])
def test_two_clusters_end_with_the_same_model(job: Path, tmp_path: Path, overlap: int, bits: int) -> None:
    """The one has two ranks, the other one; what they have exchanged is little."""
    keys = (f"outer.overlap={overlap}", f"outer.bits={bits}", "outer.names=here,there")
    groups = [
        cluster(job, tmp_path / "bucket", tmp_path / str(number), number, *keys, size=3 - number) for number in (1, 2)
    ]
    for group in groups:
        group.done()
    one, two = tmp_path / "1", tmp_path / "2"
    assert equal(parameters(one), parameters(two))
    assert equal(outer_state(one), outer_state(two), but=["error"])
    assert rounds(one) == rounds(two) == {1: [1, 2], 2: [1, 2], 3: [1, 2], 4: [1, 2]}
    assert losses(one) != losses(two), "they train on different windows"
    count = sum(each.numel() for each in parameters(one).values())
    expected = pytest.approx(quantise.length(count, bits), abs=3000)  # and the records
    assert all(each["sent"] == expected and each["received"] == expected for each in facts(one)), (
        "its own are not read back"
    )
    assert "round 4 of 4: cluster here and cluster there; " in groups[0].output(0)
    assert losses(one)[8] < losses(one)[1]
    known = json.loads((one / "clusters.json").read_text())["clusters"]
    assert [(each["name"], each["run"]) for each in known] == [("here", "1"), ("there", "2")]


def test_the_clusters_read_disjoint_parts_of_one_order(job: Path, tmp_path: Path) -> None:
    """With plain averaging of plain steps, two clusters compute what one does: each has its part of every batch."""
    plain = tmp_path / "plain"
    first = ("train.steps=2", "checkpoint.every=1", "train.warmup=0", "model.dropout=0", "train.clip=0")
    start(job, plain, 2, first).done()
    keys = (*first, "outer.every=1", "outer.overlap=0", "outer.bits=32", "outer.shares=3,4")
    groups = [cluster(job, tmp_path / "bucket", tmp_path / str(number), number, *keys) for number in (1, 2)]
    for group in groups:
        group.done()
    one, two, both = (losses(run)[1] for run in (tmp_path / "1", tmp_path / "2", plain))
    assert (3 * one + 4 * two) / 7 == pytest.approx(both, rel=1e-5)
    assert one != two


@pytest.mark.faults
def test_clusters_meet_in_an_object_store_that_is_away_for_a_while(job: Path, tmp_path: Path, s3: Server) -> None:
    keys = ("outer.keep=1", "train.steps=20", "checkpoint.every=10")
    groups = [cluster(job, s3, tmp_path / str(number), number, *keys) for number in (1, 2)]
    until(lambda: "round 2 of 10" in groups[0].output(0) or not groups[0].alive())
    s3.wire.cut()
    until(lambda: "no answer" in groups[0].output(0) or not groups[0].alive())
    s3.wire.reset()
    for group in groups:
        group.done()
    assert "; trying again for 60 s" in groups[0].output(0)
    assert equal(parameters(tmp_path / "1", 20), parameters(tmp_path / "2", 20))
    assert rounds(tmp_path / "1") == {number: [1, 2] for number in range(1, 11)}


@pytest.mark.faults
def test_a_killed_cluster_comes_back_and_nothing_is_lost(job: Path, tmp_path: Path) -> None:
    """Within the wait: bit for bit what it is without the kill."""
    whole = [
        cluster(job, tmp_path / "bucket", tmp_path / f"whole-{number}", number, "outer.overlap=1") for number in (1, 2)
    ]
    for group in whole:
        group.done()
    keys = ("outer.overlap=1",)
    one = cluster(job, tmp_path / "again", tmp_path / "1", 1, *keys)
    two = cluster(job, tmp_path / "again", tmp_path / "2", 2, *keys)
    until(lambda: (tmp_path / "2" / "checkpoints" / "step-000004").exists() or not two.alive())
    two.kill()
    cluster(job, tmp_path / "again", tmp_path / "2", 2, *keys, resume=True).done()
    one.done()
    assert equal(parameters(tmp_path / "1"), parameters(tmp_path / "whole-1"))
    assert equal(outer_state(tmp_path / "2"), outer_state(tmp_path / "whole-2"))
    assert losses(tmp_path / "2") == losses(tmp_path / "whole-2")


@pytest.mark.faults
def test_a_cluster_that_comes_late_takes_part_from_then_on(job: Path, tmp_path: Path) -> None:
    keys = ("outer.wait=1", "train.steps=40", "checkpoint.every=10")
    one = cluster(job, tmp_path / "bucket", tmp_path / "1", 1, *keys)
    until(lambda: (tmp_path / "bucket" / "round-000003" / "done.json").exists() or not one.alive())
    two = cluster(job, tmp_path / "bucket", tmp_path / "2", 2, *keys)
    one.done()
    two.done()
    assert equal(parameters(tmp_path / "1", 40), parameters(tmp_path / "2", 40))
    took_part = rounds(tmp_path / "1")
    assert took_part[1] == took_part[2] == took_part[3] == [1]
    together = [number for number, clusters in took_part.items() if clusters == [1, 2]]
    assert together, two.output()
    assert "have ended: going on from what came of them, at step " in two.output(0)
    first = lines(tmp_path / "2")[0]["step"]
    assert first > 6, "it begins where the other one is"
    assert took_part[20] == json.loads((tmp_path / "bucket" / "round-000020" / "done.json").read_text())["clusters"]


@pytest.mark.faults
def test_a_cluster_that_comes_after_all_was_removed_takes_the_outer_state(job: Path, tmp_path: Path) -> None:
    keys = ("outer.wait=1", "train.steps=20", "checkpoint.every=10", "outer.keep=2")
    cluster(job, tmp_path / "bucket", tmp_path / "1", 1, *keys).done()
    names = {path.name for path in (tmp_path / "bucket").iterdir()}
    assert {"state-000008.json", "state-000006.json"} <= names and "state-000004.json" not in names
    assert [path.name for path in (tmp_path / "bucket" / "round-000004").iterdir()] == ["done.json"]
    two = cluster(job, tmp_path / "bucket", tmp_path / "2", 2, *keys)
    two.done()
    assert equal(parameters(tmp_path / "1", 20), parameters(tmp_path / "2", 20))
    assert [line["step"] for line in lines(tmp_path / "2")] == [19, 20]


@pytest.mark.faults
def test_a_stop_while_waiting_leaves_the_exchange_for_later(job: Path, tmp_path: Path) -> None:
    one = cluster(job, tmp_path / "bucket", tmp_path / "1", 1, size=2)
    until(lambda: "waiting for cluster 2" in one.output(0) or not one.alive())
    one.processes[1].terminate()
    one.done()
    assert "stopped: step 2 is in the checkpoint" in one.output(0)
    assert "sent" in outer_state(tmp_path / "1", 2)
    groups = [cluster(job, tmp_path / "bucket", tmp_path / str(number), number, resume=True) for number in (1, 2)]
    for group in groups:
        group.done()
    assert equal(parameters(tmp_path / "1"), parameters(tmp_path / "2"))
    assert rounds(tmp_path / "2") == {number: [1, 2] for number in range(1, 5)}


@pytest.mark.parametrize(
    "more, wrong",
    [
        (("train.lr=0.02",), "train.lr = 0.02; allowed: 0.01, as on the job's other clusters"),
        (("outer.bits=4",), "outer.bits = 4; allowed: 8, as on the job's other clusters"),
    ],
)
def test_a_cluster_with_other_settings_is_refused(job: Path, tmp_path: Path, more: tuple[str, ...], wrong: str) -> None:
    one = cluster(job, tmp_path / "bucket", tmp_path / "1", 1)
    until(lambda: (tmp_path / "bucket" / "job.json").exists() or not one.alive())
    two = cluster(job, tmp_path / "bucket", tmp_path / "2", 2, *more)
    assert two.wait() == [2]
    one.kill()
    assert f"error: {wrong}, which meet in file://{tmp_path}/bucket" in two.output(0)
    assert "Traceback" not in two.output(0)


def test_a_cluster_that_begins_with_other_parameters_is_refused(job: Path, tmp_path: Path) -> None:
    """As with other weights in model.init_from: the settings cannot tell."""
    one = cluster(job, tmp_path / "bucket", tmp_path / "1", 1, "outer.wait=20")
    until(lambda: list((tmp_path / "bucket").glob("round-000001/cluster-1.json")) or not one.alive())
    record = next((tmp_path / "bucket").glob("round-000001/cluster-1.json"))
    record.write_text(manifest.render({**manifest.parse(record), "base": "0" * 64}))
    two = cluster(job, tmp_path / "bucket", tmp_path / "2", 2, "outer.wait=20")
    assert two.wait() == [1]
    one.kill()
    assert "round 1: cluster 1 began it with other parameters than this cluster" in two.output(0)


def test_a_bucket_that_is_not_there_is_refused(job: Path, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    group = cluster(job, tmp_path / "a-file", tmp_path / "1", 1)
    assert group.wait() == [2]
    assert "outer.exchange = file://" in group.output(0) and "Traceback" not in group.output(0)
