"""The verbs of jobs against a backend that is nothing but objects: what they do is theirs, whoever runs the job."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from invoke.exceptions import Exit
from memory_backend import CREATED, NODES, MemoryBackend

from fabfile import backends, log_display, program
from fabfile.backends.base import Backend, Job, JobNode, LogRequest, State, Submission
from fabfile.backends.ssh.backend import SshBackend
from fabfile.backends.ssh.start import refuse, shown
from fabfile.job_file import resolve
from fabfile.log_display import show
from fabfile.output import OutputClosed
from fabfile.remote.deploy import Deployed
from fabfile.verbs.jobs import check_rank, row, seconds
from fabfile.verbs.train import choose
from infra.inventory import KubeCluster, Node, SshCluster
from node import run_data

CLUSTER = SshCluster(name="test", nodes=tuple(Node(name=name, private_ip=f"10.0.0.{name[-1]}") for name in NODES))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> MemoryBackend:
    made = MemoryBackend()
    monkeypatch.setattr(backends, "connect", lambda _stack, _inventory: made)
    monkeypatch.setattr(log_display, "_AGAIN", 0.0)
    return made


def fab(*words: str) -> int:
    """The exit code of a command line, in this process."""
    return program.run(words)


# --- train ---


def test_a_job_is_followed_to_its_end(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("train", "smoke") == 0
    assert capsys.readouterr().out.splitlines() == [
        "smoke-1: 3 ranks on node1, node2, node3",
        "[node1 rank=0] step 1/2 loss 2.0",
        "[node1 rank=0] step 2/2 loss 1.0",
        "next: fab sample smoke-1 --prompt ...   (files: fab fetch smoke-1)",
    ]
    assert not backend.is_open


def test_a_dry_run_starts_nothing(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("train", "smoke", "--nodes", "2", "--dry-run") == 0
    assert capsys.readouterr().out == "would run smoke on 2 nodes\n" and backend.table == []


@pytest.mark.parametrize("code", [1, 137])
def test_the_exit_code_of_a_failed_job_is_that_of_the_verb(
    code: int, backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.ends = (State.FAILED, code, "node2: out of memory")
    assert fab("train", "smoke") == code
    assert "next: fab logs smoke-1   (go on: fab train --resume smoke-1)" in capsys.readouterr().err


def test_a_detached_job_goes_on(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("train", "smoke", "--detach") == 0
    assert backend.table[0].state == State.RUNNING
    assert "next: fab logs smoke-1 --follow   (stop: fab stop smoke-1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("connect", "interrupted: no job was started"),
        ("prepare", "interrupted: no job was started"),
        ("submit", "smoke-1 goes on without you\nnext: fab logs smoke-1 --follow   (stop: fab stop smoke-1)"),
        ("logs", "smoke-1 goes on without you\nnext: fab logs smoke-1 --follow   (stop: fab stop smoke-1)"),
    ],
)
def test_ctrl_c_says_whether_a_job_was_started(
    when: str,
    said: str,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(method: str) -> None:
        if method == when:
            os.kill(os.getpid(), signal.SIGINT)

    def connect(_stack: str, _inventory: str) -> Backend:
        interrupt("connect")
        return backend

    backend.on = interrupt
    monkeypatch.setattr(backends, "connect", connect)
    assert fab("train", "smoke") == 130
    assert capsys.readouterr().err == f"\n{said}\n"
    assert bool(backend.table) == (when in ("submit", "logs"))


def test_a_busy_cluster_is_said_with_what_to_do(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    fab("train", "smoke", "--detach")
    assert fab("train", "smoke") == 1
    line = "node1: busy with another\nnext: fab jobs   (or wait for the nodes: fab train ... --queue)\n"
    assert capsys.readouterr().err == line
    assert fab("train", "smoke", "--detach", "--queue") == 0 and len(backend.table) == 2


def test_more_nodes_than_there_are_and_no_job_are_refused(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("train", "smoke", "--nodes", "4") == 2 and "memory has 3" in capsys.readouterr().err
    assert fab("train") == 2 and "which job?" in capsys.readouterr().err
    assert backend.table == []


def test_a_job_is_resumed_with_its_own_settings(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    fab("train", "smoke", "train.steps=7", "train.warmup=1", "--nodes", "2")
    capsys.readouterr()
    assert fab("train", "--resume", "1", "train.steps=9") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        "smoke-1: nodes: 2, as it had (--nodes N changes that)",
        "smoke-1: train.steps: 7 -> 9",
        "smoke-1: 2 ranks on node1, node2",
    ]
    assert [job.id for job in backend.table] == ["smoke-1"]


def test_a_job_that_the_mirror_alone_knows_is_resumed(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.mirror, backend.bucket = "s3://shelf/runs", {"smoke-8": resolve("smoke", ["train.steps=30"], 1).text}
    assert fab("train", "--resume", "smoke-8") == 0
    assert "smoke-8 is not one of memory's jobs: going on from s3://shelf/runs/smoke-8" in capsys.readouterr().out
    assert "steps = 30\n" in backend.texts["smoke-8"]


# --- logs, jobs, stop ---


def test_a_lost_connection_loses_and_repeats_no_line(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    capsys.readouterr()
    backend.lost_at = 1
    assert fab("logs", "latest", "--follow") == 0
    said = capsys.readouterr()
    assert [line.partition("] ")[2] for line in said.out.splitlines()[:-1]] == list(backend.lines)
    assert said.err == "connection to here lost, trying again: the line is dead\n"


def test_a_host_that_stays_away_is_given_up(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    monkeypatch.setattr(log_display, "_PATIENCE", 0.0)
    backend.lost_at = 0
    assert fab("logs", "smoke-1", "--follow") == 1
    assert "here: the line is dead\nnext: fab logs smoke-1 --follow" in capsys.readouterr().err


def test_the_log_so_far_and_of_one_rank(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    fab("train", "smoke", "--detach")
    capsys.readouterr()
    assert fab("logs", "1", "--rank", "2") == 0
    assert capsys.readouterr().out == "next: fab logs smoke-1 --follow   (stop: fab stop smoke-1)\n"
    assert fab("logs", "1", "--rank", "3") == 2 and "ranks 0 to 2" in capsys.readouterr().err
    assert fab("logs", "zebra") == 2 and "no job 'zebra' on memory; there are: smoke-1" in capsys.readouterr().err


def test_the_table_and_the_json_of_jobs(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("jobs") == 0 and "fab train JOB.toml" in capsys.readouterr().out
    fab("train", "smoke", "--detach")
    capsys.readouterr()
    fab("jobs")
    assert "smoke-1" in (out := capsys.readouterr().out) and "next: fab logs smoke-1 --follow" in out
    fab("jobs", "--json")
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["id"], told["state"], told["nodes"], told["created"]) == ("smoke-1", "RUNNING", [*NODES], CREATED)


@pytest.mark.parametrize(("words", "reason"), [([], "stopped"), (["--now"], "stopped at once")])
def test_a_job_is_stopped(
    words: list[str], reason: str, backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    capsys.readouterr()
    assert fab("stop", "smoke-1", *words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        "smoke-1: asked to stop",
        f"smoke-1 CANCELLED: {reason}",
        "nothing of smoke-1 is left on 3 nodes",
    ]
    backend.left = {"node2": "process 12"}
    assert fab("stop", "smoke-1") == 1
    said = capsys.readouterr().out.splitlines()
    assert said == ["smoke-1 is CANCELLED already", "node2: left there: process 12"]


# --- fetch, sample ---


def test_files_are_fetched(
    backend: MemoryBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fab("train", "smoke", "--detach")
    state = json.dumps({"id": "smoke-1", "started": CREATED}).encode()
    backend.content = {"state.json": state, "checkpoints/step-1/model": b"m" * 9}
    assert fab("fetch", "latest") == 0 == fab("fetch", "latest")
    assert (tmp_path / "runs/smoke-1/checkpoints/step-1/model").read_bytes() == b"m" * 9
    assert "0 of 2 files new or changed" in capsys.readouterr().out
    backend.content = {"../out": b""}
    assert fab("fetch", "latest", "--to", "other") == 1
    assert "here: smoke-1 was not fetched: '../out' has an empty part" in capsys.readouterr().err


def test_text_is_sampled_and_its_program_s_exit_code_passed_on(
    backend: MemoryBackend, capfd: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    capfd.readouterr()
    assert fab("sample", "1", "--prompt", "a", "--tokens", "2") == 0
    assert capfd.readouterr().out.rstrip("\n") == "a0 a1 "
    assert fab("sample", "1", "--seed", "0") == 3 and capfd.readouterr().err.startswith("no model")


def test_a_report_is_made_of_what_the_backend_reads(
    backend: MemoryBackend, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo-1").mkdir()
    (tmp_path / "demo-1/job.toml").write_text(resolve("smoke", [], 3).text)
    (tmp_path / "demo-1/metrics.jsonl").write_text('{"step": 1, "time": 1.0, "tokens": 64, "loss": 2.5}\n')
    backend.data = {"demo-1": run_data.collect(tmp_path / "demo-1")}
    assert fab("report", "demo-1", "--out", str(tmp_path / "page.html")) == 0
    page = (tmp_path / "page.html").read_text()
    assert "demo-1" in page and "node2" in page and "not known now" in page


# --- which backend ---


def test_the_inventory_decides_who_runs_jobs() -> None:
    made: Backend = backends.of(CLUSTER)
    assert isinstance(made, SshBackend) and made.nodes()[0] == JobNode("node1", 1)
    kube = KubeCluster(name="eks", region="eu-west-1", namespace="ml", image="i:1", workers=2, gpus_per_worker=8)
    with pytest.raises(Exit, match="kind = 'kubernetes'") as error:
        backends.of(kube)
    assert error.value.code == 2


def test_a_record_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="nodes"):
        Job.from_record({"id": "a-1", "state": "RUNNING", "created": 1.0})
    with pytest.raises(ValueError, match="ZOMBIE"):
        Job.from_record({"id": "a-1", "state": "ZOMBIE", "created": 1.0, "nodes": []})


# --- the command line ---


@pytest.mark.parametrize(("text", "value"), [("", 0), ("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400)])
def test_since(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["5", "m", "5 m", "-5m", "5w"])
def test_since_that_makes_no_sense(text: str) -> None:
    with pytest.raises(Exit, match="must be a number with") as error:
        seconds(text)
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
    ("given", "said"),
    [("demmo", "did you mean demo"), ("zebra", "the published ones are: demo, "), ("", "are: demo, ")],
)
def test_an_unknown_job_names_those_that_there_are(
    given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exit) as error:
        resolve(given, [], 3)
    assert error.value.code == 2 and said in str(error.value.message) and "\n" not in str(error.value.message)
    (tmp_path / "demo").mkdir()  # a folder of that name is no job
    assert resolve("demo", [], 3).name == "demo"


def test_a_job_without_its_data_is_told_how_to_make_them() -> None:
    lacking = {"node1": Deployed("/code", "", "error: /data/stdlib: no such folder")}
    with pytest.raises(Exit) as error:
        refuse(lacking, queue=False, prepare="fab prepare demo")
    assert error.value.message == "node1: /data/stdlib: no such folder; run: fab prepare demo"


def test_a_rank_that_the_job_does_not_have_is_refused() -> None:
    nodes = SshBackend(CLUSTER).nodes()
    job = Job(id="demo-1", state=State.RUNNING, nodes=("node1", "node2"), created=0.0)
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
    backend.table = [Job(id="demo-1", state=State.RUNNING, nodes=NODES, created=0.0)]
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
    state = Job.from_record(
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
