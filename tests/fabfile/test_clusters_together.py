"""`fab train --with`: one job on several clusters, with backends in this process that share a bucket, or do not."""

from __future__ import annotations

import os
import signal
import tomllib
from dataclasses import dataclass, field

import pytest
from fab_command import fab
from memory_backend import MemoryBackend

from fabfile import backends
from fabfile.backends.base import JobNode, JobState


@dataclass
class Cluster(MemoryBackend):
    """With a bucket: the set of names that this cluster and those with the same set have written."""

    bucket_names: set[str] = field(default_factory=set)
    count: int = 3

    def nodes(self) -> tuple[JobNode, ...]:
        return super().nodes()[: self.count]

    def run_program(self, module: str, *words: str) -> str:
        if words[0] != "mark":
            return super().run_program(module, *words)
        self.bucket_names.add(words[2])
        return "\n".join(sorted(self.bucket_names))


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cluster]:
    """Three stacks with a bucket that all see."""
    shared: set[str] = set()
    made = {name: Cluster(name=name, bucket_names=shared, mirror=f"s3://{name}/runs") for name in ("a", "b", "c")}
    monkeypatch.setattr(backends, "connect", lambda stack, _inventory: made[stack])
    return made


def outer(cluster: Cluster, job: str = "smoke-1") -> dict[str, object]:
    found: dict[str, object] = tomllib.loads(cluster.texts[job])["outer"]
    return found


START = ("train", "smoke", "outer.every=10", "--stack", "a", "--with", "b")


def test_the_job_is_started_on_both_and_followed_on_both(
    clusters: dict[str, Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab(*START) == 0
    first, second = outer(clusters["a"]), outer(clusters["b"])
    assert (first["cluster"], second["cluster"]) == (1, 2)
    assert {**first, "cluster": 0} == {**second, "cluster": 0}
    assert (first["clusters"], first["names"], first["shares"]) == (2, "a,b", "")
    assert str(first["exchange"]).startswith("s3://a/exchange/smoke-2")
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["a: smoke-1: 3 ranks on 3 nodes", "b: smoke-1: 3 ranks on 3 nodes"]
    lines = ("step 1/2 loss 2.0", "step 2/2 loss 1.0")
    assert sorted(printed[2:6]) == [f"[{name} node1 rank=0] {line}" for name in "ab" for line in lines]
    assert printed[6] == "next: fab report smoke-1 b:smoke-1 --stack a   (the model: fab fetch smoke-1 --stack a)"


def test_three_clusters_share_by_their_ranks(clusters: dict[str, Cluster]) -> None:
    clusters["c"].count = 1
    assert fab(*START, "--with", "c", "--detach") == 0
    assert [outer(clusters[name])["shares"] for name in "abc"] == ["3,3,1"] * 3
    assert fab(*START, "--with", "c", "--detach", "outer.shares=1,1,2", "--queue") == 0
    assert outer(clusters["a"], "smoke-2")["shares"] == "1,1,2"


def test_the_bucket_is_the_one_that_is_named(clusters: dict[str, Cluster]) -> None:
    assert fab(*START, "outer.exchange=s3://job/x", "--detach") == 0
    assert str(outer(clusters["b"])["exchange"]).startswith("s3://job/x/smoke-2")
    assert fab(*START, "outer.exchange=s3://job/x", "--exchange", "abfs://c@d/y/", "--detach", "--queue") == 0
    assert str(outer(clusters["b"], "smoke-2")["exchange"]).startswith("abfs://c@d/y/smoke-2")


def test_no_common_bucket_is_refused_before_anything_runs(
    clusters: dict[str, Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    clusters["b"].bucket_names = set()
    assert fab(*START) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith("b: what a has written to s3://a/exchange/smoke-2") and "--exchange URL names a bucket" in said
    )
    assert not clusters["a"].table and not clusters["b"].table


def test_no_bucket_at_all_is_refused(clusters: dict[str, Cluster], capsys: pytest.CaptureFixture[str]) -> None:
    clusters["a"].mirror = ""
    assert fab(*START) == 2
    assert "a has no bucket, and the clusters meet in one: --exchange URL names one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    [
        (("--with", "a"), "--with a: it is named twice"),
        (("outer.every=7", "--with", "b"), "train.steps = 20; allowed: a multiple of outer.every = 7, such as 14"),
        (("--exchange", "s3://x/y"), "--exchange: with which other cluster? --with STACK2"),
        (("--exchange", "somewhere", "--with", "b"), 'outer.exchange = "somewhere/smoke-'),
    ],
)
def test_what_cannot_work_is_one_line(
    words: tuple[str, ...], said: str, clusters: dict[str, Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("train", "smoke", "outer.every=10", "--stack", "a", *words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not clusters["a"].table


def test_if_one_cannot_start_none_is_left_running(
    clusters: dict[str, Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("train", "smoke", "--stack", "b", "--detach") == 0
    assert fab(*START) == 1
    assert "b: node1: busy with another" in capsys.readouterr().err
    assert not clusters["a"].table


def test_the_exit_code_is_that_of_the_cluster_that_failed(
    clusters: dict[str, Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    clusters["b"].ends = (JobState.FAILED, 137, "node2: out of memory")
    assert fab(*START) == 137
    printed = capsys.readouterr()
    assert "b: smoke-1 FAILED: node2: out of memory" in printed.out
    assert printed.err == "next: fab train --resume smoke-1 --with b --stack a\n"


def test_ctrl_c_says_what_runs_where(clusters: dict[str, Cluster], capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(method: str) -> None:
        if method == "logs":
            os.kill(os.getpid(), signal.SIGINT)

    clusters["b"].on = interrupt
    assert fab(*START) == 130
    said = capsys.readouterr().err
    assert "a: smoke-1 goes on without you" in said and "b: smoke-1 goes on without you" in said
    assert "next: fab logs smoke-1 --follow --stack b   (stop: fab stop smoke-1 --stack b)" in said


def test_a_resumed_job_goes_on_on_both(clusters: dict[str, Cluster], capsys: pytest.CaptureFixture[str]) -> None:
    """The other cluster's job is found by the folder in which they meet."""
    assert fab("train", "smoke", "--stack", "b", "--detach", "train.steps=10") == 0
    clusters["b"].end("smoke-1", JobState.SUCCEEDED, 0, "")
    clusters["a"].ends = clusters["b"].ends = (JobState.FAILED, 1, "lost")
    assert fab(*START) == 1
    clusters["a"].ends = clusters["b"].ends = (JobState.SUCCEEDED, 0, "")
    before = [outer(clusters["a"]), outer(clusters["b"], "smoke-2")]
    assert fab("train", "--resume", "smoke-1", "--stack", "a", "--with", "b") == 0
    assert [outer(clusters["a"]), outer(clusters["b"], "smoke-2")] == before
    assert [job.id for job in clusters["b"].table if job.state == JobState.SUCCEEDED] == ["smoke-1", "smoke-2"]
    capsys.readouterr()
    assert fab("train", "--resume", "smoke-1", "--stack", "b", "--with", "a", "train.steps=40") == 2
    assert "smoke-1 was begun by one cluster alone: it goes on without --with" in capsys.readouterr().err
