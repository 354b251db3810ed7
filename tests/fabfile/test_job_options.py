"""What the verbs of jobs read: the inventory's kind, records, durations, nodes, ranks, job files and mirrors."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit
from memory_backend import NODES, MemoryBackend

from fabfile import backends
from fabfile.backends.base import Backend, CannotStart, JobNode, JobRecord, JobState, LogRequest
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.ssh.backend import SshBackend
from fabfile.backends.ssh.start import candidates, choice, may_choose, refuse, shown
from fabfile.backends.submission import Begun, Submission
from fabfile.job_file import resolve
from fabfile.launchers.program import Program
from fabfile.log_display import show
from fabfile.output import OutputClosed
from fabfile.remote.deploy import Deployed
from fabfile.starting import choose
from fabfile.verbs.jobs import check_rank, row, seconds
from infra.inventory import KubeCluster, Node, SshCluster

CLUSTER = SshCluster(name="test", nodes=tuple(Node(name=name, private_ip=f"10.0.0.{name[-1]}") for name in NODES))


def test_the_inventory_decides_who_runs_jobs() -> None:
    made: Backend = backends.of(CLUSTER)
    assert isinstance(made, SshBackend) and made.nodes()[0] == JobNode("node1", 1)
    kube = KubeCluster(name="eks", region="eu-west-1", namespace="ml", image="i:1", workers=2, gpus_per_worker=8)
    with pytest.raises(Exit, match="eks: jobs on Kubernetes need shared_dir and shared_claim") as error:
        backends.of(kube)
    assert error.value.code == 2
    shared = backends.of(replace(kube, shared_dir="/fsx", shared_claim="fsx"))
    assert isinstance(shared, KubernetesBackend) and shared.nodes()[0] == JobNode("worker-1", 8, on_gpus=True)


def test_a_record_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="nodes"):
        JobRecord.from_record({"id": "a-1", "state": "RUNNING", "created": 1.0})
    with pytest.raises(ValueError, match="ZOMBIE"):
        JobRecord.from_record({"id": "a-1", "state": "ZOMBIE", "created": 1.0, "nodes": []})


@pytest.mark.parametrize(("text", "value"), [("", 0), ("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400)])
def test_since(text: str, value: float) -> None:
    assert seconds(text, "--since") == value


@pytest.mark.parametrize("text", ["5", "m", "5 m", "-5m", "5w"])
def test_since_that_makes_no_sense(text: str) -> None:
    with pytest.raises(Exit, match="must be a number with") as error:
        seconds(text, "--since")
    assert error.value.code == 2


def test_the_head_is_always_among_the_nodes() -> None:
    assert [node.name for node in choose(SshBackend(CLUSTER), 2)] == ["node1", "node2"]
    assert len(choose(SshBackend(CLUSTER), None)) == 3
    for count in (0, 4):
        with pytest.raises(Exit, match=f"--nodes {count}: test has 3; leave it out for all"):
            choose(SshBackend(CLUSTER), count)


def test_a_job_is_resolved_by_its_name_and_what_is_wrong_is_one_line() -> None:
    resolved = resolve("smoke", ["train.steps=7", "train.warmup=1"], 3)
    assert resolved.name == "smoke" and "steps = 7" in resolved.text
    for words, line in (
        (["train.stepps=7"], "train.stepps: no such key"),
        (["run.directory=/tmp/x"], "run.directory = /tmp/x"),
    ):
        with pytest.raises(Exit) as error:
            resolve("smoke", words, 3)
        assert error.value.code == 2 and str(error.value.message).startswith(line)
        assert "\n" not in str(error.value.message)
    with pytest.raises(Exit, match="for 99 ranks"):
        resolve("smoke", [], 99)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("demmo", "did you mean demo"), ("zebra", "the published ones are: demo, "), ("", "are: demo, ")],
)
def test_an_unknown_job_names_those_that_there_are(
    given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exit) as error:
        resolve(given, [], 3)
    assert error.value.code == 2 and expected in str(error.value.message) and "\n" not in str(error.value.message)
    (tmp_path / "demo").mkdir()  # a folder of that name is no job
    assert resolve("demo", [], 3).name == "demo"


def test_a_job_without_its_data_is_told_how_to_make_them() -> None:
    lacking = {"node1": Deployed("/code", "", "error: /data/stdlib: no such folder")}
    with pytest.raises(Exit) as error:
        refuse(lacking, free=1, prepare="fab prepare demo")
    assert error.value.message == "node1: /data/stdlib: no such folder; run: fab prepare demo"


def test_busy_nodes_are_refused_where_too_few_are_left() -> None:
    there = {"node1": Deployed("/code", "demo-1", ""), "node2": Deployed("/code", "", "")}
    refuse(there, free=1, prepare="")
    with pytest.raises(CannotStart, match="node1: busy with demo-1"):
        refuse(there, free=2, prepare="")


PROGRAM = Program(argv=("python", "train.py"), name="train")
ANSWERS = {name: Deployed("/code", busy, "") for name, busy in zip(NODES, ("demo-1", "", ""), strict=True)}


def test_the_head_chooses_nodes_for_a_job_on_some_of_several_that_are_alike() -> None:
    job = Submission(job=resolve("smoke", [], 1), nodes=1)
    for each in (job, replace(job, elastic=True), Submission(program=PROGRAM, nodes=1)):
        assert may_choose(CLUSTER, each) and candidates(CLUSTER, each) == CLUSTER.nodes
    begun = Begun("smoke-1", "", 1, files_on="node2")
    bound: list[dict[str, Any]] = [{"nodes": 3}, {"on_first": True}, {"launcher": "mpirun"}]
    for changes in bound:
        asked = replace(job, **changes)
        assert not may_choose(CLUSTER, asked) and candidates(CLUSTER, asked) == CLUSTER.nodes[: asked.nodes]
        if "launcher" in changes:
            with pytest.raises(Exit, match="begin on the head; smoke-1 has its files on node2"):
                shown(CLUSTER, replace(asked, begun=begun))
    other = replace(CLUSTER, nodes=(*CLUSTER.nodes[:2], replace(CLUSTER.nodes[2], slots=4)))
    assert not may_choose(other, job)
    assert "the first that are free" in shown(CLUSTER, job)
    assert "the first that are free" not in shown(CLUSTER, replace(job, nodes=3))
    goes_on = Submission(program=PROGRAM, nodes=1, begun=Begun("train-1", "", 1, files_on="node2", on=("node2",)))
    assert "it runs on node2, which has its files.\n" in shown(CLUSTER, goes_on)
    two = replace(goes_on, nodes=2, begun=Begun("train-1", "", 2, on=("node2", "node3")))
    assert "node2, which has its files, and the first others of node2, node3 that are free.\n" in shown(CLUSTER, two)
    trains = replace(job, nodes=2, begun=Begun("smoke-1", "", 2, on=("node2", "node3")))
    assert "node2, which has its files, and the first others that are free.\n" in shown(CLUSTER, trains)


@pytest.mark.parametrize(
    ("changes", "among"),
    [
        ({"nodes": 1}, ("node2", "node3")),
        ({"nodes": 1, "queue": True}, NODES),
        ({"nodes": 2, "begun": Begun("train-1", "", 2, on=("node1", "node3"))}, ("node1", "node3")),
        ({"nodes": 2, "begun": Begun("train-1", "", 2, on=("node3",))}, NODES),
        ({"nodes": 1, "job": resolve("smoke", [], 1), "program": None}, NODES),
    ],
)
def test_a_program_runs_on_nodes_to_which_its_directory_is_brought_or_has_been(
    changes: dict[str, Any], among: tuple[str, ...]
) -> None:
    chosen = choice(CLUSTER, Submission(**{"program": PROGRAM, **changes}), ANSWERS)
    assert chosen.there == CLUSTER.nodes and chosen.among == among
    assert tuple(node.name for node in chosen.nodes) == among


def test_a_program_is_not_moved_away_from_a_node_that_does_not_answer() -> None:
    there = {name: ANSWERS[name] for name in NODES if name != "node2"}
    with pytest.raises(CannotStart, match=r"^node2: no answer; 2 nodes wanted, 1 there$"):
        choice(CLUSTER, Submission(program=PROGRAM, nodes=2, begun=Begun("a-1", "", 2, on=("node2", "node3"))), there)
    with pytest.raises(CannotStart, match=r"^node2, node3: no answer; 2 nodes wanted, 1 there$"):
        choice(CLUSTER, Submission(program=PROGRAM, nodes=2), {"node1": ANSWERS["node1"]})


def test_a_rank_that_the_job_does_not_have_is_refused() -> None:
    nodes = SshBackend(CLUSTER).nodes()
    job = JobRecord(id="demo-1", state=JobState.RUNNING, nodes=("node1", "node2"), created=0.0)
    for rank in ("", "-", "0", "1"):
        check_rank(rank, nodes, job)
    with pytest.raises(Exit) as error:
        check_rank("9", nodes, job)
    assert error.value.code == 2 and "demo-1 has ranks 0 to 1" in str(error.value.message)
    check_rank("9", nodes, replace(job, nodes=()))  # a damaged record says nothing


def test_a_reader_that_goes_away_is_no_lost_connection(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fab logs demo-1 | head` went on for ever, with a new connection each second."""
    reading, writing = os.pipe()
    os.close(reading)
    backend.table = [JobRecord(id="demo-1", state=JobState.RUNNING, nodes=NODES, created=0.0)]
    with os.fdopen(writing, "w") as closed, pytest.raises(OutputClosed):
        monkeypatch.setattr("sys.stdout", closed)
        show(backend, LogRequest("demo-1"))


def test_the_mirror_is_the_cluster_s_bucket_unless_the_job_says_something_else() -> None:
    bucket = "s3://shelf/runs"
    assert resolve("demo", [], 3).mirror == ""
    assert resolve("demo", [], 3, bucket).mirror == bucket
    assert f'mirror = "{bucket}"' in resolve("demo", [], 3, bucket).text
    assert resolve("demo", ["checkpoint.mirror=none"], 3, bucket).mirror == "none"
    assert resolve("demo", ["checkpoint.mirror=abfs://a@b/c"], 3, bucket).mirror == "abfs://a@b/c"


def test_a_dry_run_shows_hostfile_environment_command_and_job() -> None:
    text = shown(CLUSTER, Submission(job=resolve("smoke", [], 3), nodes=3))
    for part in ("node3:1", "I_MPI_HYDRA_BOOTSTRAP=ssh", "mpirun -n 3 -ppn 1", "$MASTER_PORT", "[checkpoint]"):
        assert part in text


def test_a_job_in_the_table_says_what_it_took_and_what_it_cost() -> None:
    state = JobRecord.from_record(
        {
            **{"id": "demo-3", "state": "FAILED", "reason": "r" * 80, "nodes": NODES, "attempt": 2},
            **{"created": 1000.0, "started": 1000.0, "ended": 4600.0, "price_per_hour": 1.5},
        }
    )
    assert row(state, 8200.0)[:7] == ["demo-3", "FAILED", "3", "2", "2h00m", "1h00m", "$1.50"]
    assert len(row(state, 8200.0)[7]) == 60
    assert json.dumps(row(replace(state, started=None, ended=None), 8200.0)).count('"-"') == 1
    resumed = replace(state, created=7900.0)
    assert row(resumed, 8200.0)[4] == "2h00m (resumed 5m)"
    # Stopped for half an hour in between: that is neither its time nor its price.
    assert row(replace(state, paused=1800.0), 8200.0)[5:7] == ["30m", "$0.75"]
