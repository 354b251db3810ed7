"""A job on Kubernetes from inside its pods, which are processes of this machine: it trains, and ends as asked."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from pods import PodsOfJob, job_of
from polling import until

from fabfile.launchers import SYSTEM_PYTHON, HeadValues, Launch, plans
from infra.inventory import Node
from node.job import files
from node.kubernetes import records


@pytest.mark.acceptance
def test_three_pods_train_to_the_end(tmp_path: Path) -> None:
    with job_of(tmp_path) as job:
        assert (job.state["state"], job.state["nodes"], job.state["kubernetes"]) == ("PENDING", [], True)
        for index in (2, 0, 1):
            job.start(index)
        record = job.ends("SUCCEEDED")
        assert [job.exits(index) for index in range(3)] == [0, 0, 0]
        assert not (job.run_dir / "supervisor.json").exists(), "its token is in nobody's copy of the job's files"
        assert record["nodes"] == ["machine-0", "machine-1", "machine-2"] and record["attempt"] == 1
        for rank in range(3):
            assert f"machine-{rank} {rank} rank {rank} of 3 from step 0: 127.0.0.1" in job.log, job.everything()
        assert "local 0 gloo" in job.log
        job.start(0)
        assert job.exits(0) == 0, "made again after the end it does nothing"


def test_one_pod_with_two_ranks_of_which_the_first_alone_has_the_key(tmp_path: Path) -> None:
    with job_of(tmp_path, pods=1, slots=2, steps=2) as job:
        job.start(0, WANDB_API_KEY="k" * 40)
        job.ends("SUCCEEDED")
        said = {line.split(" ", 3)[2]: line.split(" ", 3)[3] for line in job.log.splitlines() if " key " in line}
        assert said == {"0": "key " + "k" * 40, "1": "key none"}
        assert "rank 1 of 2 from step 0" in job.log and "local 1" in job.log
        there = [path for path in job.run_dir.rglob("*") if path.is_file() and path.name not in ("log", "rank-0.log")]
        assert all("k" * 40 not in files.text(path) for path in there)


@pytest.mark.acceptance
def test_a_pod_that_is_late_is_waited_for(tmp_path: Path) -> None:
    quick = {"node/kubernetes/machines.py": ("_QUIET = 3.0", "_QUIET = 0.1")}
    with job_of(tmp_path, steps=2, changes=quick) as job:
        job.start(0)
        job.start(1)
        until(lambda: "waiting for the job's pods: 2 of 3 are there" in job.log)
        assert job.state["state"] == "PENDING"
        job.start(2)
        assert job.ends("SUCCEEDED")["nodes"] == ["machine-0", "machine-1", "machine-2"]


@pytest.mark.acceptance
def test_a_stop_comes_with_a_checkpoint_and_takes_no_pod_along(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=5000) as job:
        for index in range(3):
            job.start(index)
        job.step(20)  # so long that the supervisor has heard of it
        files.write(job.run_dir / "stop.json", {"how": "stop"})
        record = job.ends("CANCELLED")
        assert "is in the checkpoint" in record["reason"]
        assert [job.exits(index) for index in range(3)] == [1, 0, 0], "1: for the operator the job has failed"


@pytest.mark.acceptance
def test_a_time_limit_counts_from_the_start_of_the_first_attempt(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=5000, pods=1, time_limit=4.0) as job:
        time.sleep(1.5)
        job.start(0)
        job.step(1)
        record = job.ends("CANCELLED")
        assert record["reason"].startswith("its time limit; stopped: step")
        assert 2.0 < record["ended"] - record["started"] < 6.0


@pytest.mark.acceptance
def test_a_rank_that_fails_is_named_and_the_job_is_not_started_again_without_leave(tmp_path: Path) -> None:
    trainer = tmp_path / "trainer.py"
    trainer.write_text(
        "import os, sys, time\ntime.sleep(0.5)\nos.environ['RANK'] == '1' and sys.exit('error: no room')\n"
    )
    with job_of(tmp_path, pods=2, trainer=trainer) as job:
        job.start(0)
        job.start(1)
        assert job.ends("FAILED")["reason"] == "rank 1 on machine-1 ended with exit code 1: no room"
        assert [job.exits(0), job.exits(1)] == [1, 0]


def test_a_wrapper_that_cannot_start_its_rank_is_heard_of(tmp_path: Path) -> None:
    broken = {
        "node/job/rank_wrapper.py": (
            "    place = RankPlacement(os.environ)\n    path, log",
            "    import absent\n    path, log",
        )
    }
    with job_of(tmp_path, pods=1, changes=broken) as job:
        job.start(0)
        reason = "rank 0 on machine-0 ended with exit code 1: ModuleNotFoundError: No module named 'absent'"
        assert job.ends("FAILED")["reason"] == reason


def address(job: PodsOfJob) -> tuple[str, int, str]:
    found: dict[str, Any] = until(lambda: files.read(job.run_dir / "supervisor.json"))
    return found["address"], found["port"], found["token"]


def said_to(where: tuple[str, int], data: bytes) -> bytes:
    """What the supervisor answers to it."""
    with socket.create_connection(where, timeout=10) as stream:
        stream.settimeout(10)
        try:
            stream.sendall(data)
            return stream.recv(4096)
        except ConnectionError:  # it was closed while more of ours was under way
            return b""


@pytest.mark.acceptance
def test_who_has_not_the_token_or_talks_nonsense_is_refused_and_the_job_trains(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=30) as job:
        job.start(0)
        job.start(1)
        host, port, token = address(job)
        assert (job.run_dir / "supervisor.json").stat().st_mode & 0o777 == 0o600
        pod = {"index": 2, "name": "p", "ip": "127.0.0.1", "machine": "m", "host_ip": "127.0.0.1"}

        def hello(**changes: Any) -> bytes:
            return json.dumps({"token": token, "pod": pod, **changes}).encode() + b"\n"

        for data, why in [
            (hello(token="0" * 64), "it has not the job's token"),
            (hello(token=7), "it has not the job's token"),
            (hello(pod={**pod, "index": 3}), "its number is 3, of 3 pods"),
            (hello(pod={**pod, "index": True}), "no pod's number"),
            (hello(pod={**pod, "machine": "a\nb"}), "no pod's names and addresses"),
            (hello(pod=[1]), "no pod's number"),
            (b"\x00\xff" * 100 + b"\n", "it has not the job's token"),
            (b"[" * 3000 + b"\n", "it has not the job's token"),
        ]:
            assert said_to((host, port), data) == f"refused {why}\n".encode()
        assert said_to((host, port), b"x" * 100_000) in (b"", b"refused its first line is longer than 4096 bytes\n")
        assert job.log.count("warning: a connection from 127.0.0.1 was refused") == 5, "and no more of them"
        job.start(2)
        job.ends("SUCCEEDED")


@pytest.mark.acceptance
def test_a_pod_that_sends_without_end_costs_its_connection_and_no_memory(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=10, pods=2) as job:
        job.start(0)
        host, port, token = address(job)
        pod = {"index": 1, "name": "p", "ip": "127.0.0.1", "machine": "m", "host_ip": "127.0.0.1"}
        with socket.create_connection((host, port), timeout=10) as stream:
            stream.sendall(json.dumps({"token": token, "pod": pod}).encode() + b"\n")
            assert stream.recv(8) == b"welcome\n"
            with pytest.raises(ConnectionError):
                for _ in range(200):
                    stream.sendall(b"x" * (1 << 20))
        job.start(1)
        assert "machine-1" in job.ends("SUCCEEDED")["nodes"] or job.state["attempt"] == 1


def kube_over(job: PodsOfJob, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [SYSTEM_PYTHON, "-I", str(job.launch), "kube-over", str(job.run_dir), *words]
    return subprocess.run(argv, env=job.environment, capture_output=True, text=True, check=False)


@pytest.mark.acceptance
def test_an_end_that_kubernetes_knows_of_is_recorded_once(tmp_path: Path) -> None:
    with job_of(tmp_path) as job:
        done = kube_over(job, "FAILED", "its pod was OOMKilled", "1", "program")
        assert json.loads(done.stdout) == job.state and job.state["state"] == "FAILED"
        assert job.state["ended_by"] == "program"
        assert job.log.endswith("head - demo-1 FAILED: its pod was OOMKilled\n")
        assert (
            json.loads(kube_over(job, "CANCELLED", "later", "1", "somebody").stdout)["reason"]
            == "its pod was OOMKilled"
        )
        for words in (["RUNNING", "x", "1", ""], ["FAILED", "x", "1"], ["FAILED", "x", "one", ""], []):
            wrong = kube_over(job, *words)
            assert wrong.returncode == 2 and wrong.stderr.startswith("kube-over:") and wrong.stderr.count("\n") == 1
        job.start(0)
        assert job.exits(0) == 1, "a pod that comes after that does nothing"


def test_a_job_that_the_api_refuses_leaves_nothing_and_a_resumed_one_is_as_it_was(tmp_path: Path) -> None:
    run_dir = tmp_path / "demo-1"
    run_dir.mkdir()
    files.write(run_dir / "state.json", {"id": "demo-1", "state": "PENDING"})
    records.keep(run_dir, {})
    assert records.undo(run_dir) == {} and not run_dir.exists()
    run_dir.mkdir()
    before = {"id": "demo-1", "state": "FAILED", "attempt": 3}
    records.keep(run_dir, before)
    files.write(run_dir / "state.json", {"id": "demo-1", "state": "PENDING"})
    assert records.undo(run_dir) == before == files.read(run_dir / "state.json")
    files.write(run_dir / "state.json", {"id": "demo-1", "state": "RUNNING"})
    assert records.undo(run_dir)["state"] == "RUNNING", "its pods have begun: it is not forgotten"


def test_the_plan_of_a_rank_is_what_a_dry_run_shows() -> None:
    nodes = tuple(Node(name=f"worker-{i}", private_ip=f"10.0.0.{i}", slots=8, gpus=8) for i in (1, 2))
    launch = Launch(id="demo-1", nodes=nodes, run_dir="/fsx/runs/demo-1", code="/fsx/code")
    plan = plans.plan("kubernetes", launch, HeadValues())
    assert plan.argv[:4] == [SYSTEM_PYTHON, "-I", "/fsx/code/launch", "rank"] and plan.hostfile == ""
    shown = plan.environment
    assert (shown["WORLD_SIZE"], shown["MASTER_ADDR"], shown["TRAINYARD_NODES"]) == ("16", "$MASTER_ADDR", "$NODES")
    assert shown["TRAINYARD_COLLECTIVES"] == "nccl" and shown["NCCL_SOCKET_IFNAME"] == "$INTERFACE"
    assert "RANK" not in shown


@pytest.mark.acceptance
def test_what_a_pod_says_when_it_is_asked_to_end_is_a_checkpoint(tmp_path: Path) -> None:
    """As when its machine is drained. The pod then ends itself, as if killed, so that the operator makes it again."""
    with job_of(tmp_path, steps=5000, pods=2, restarts=1) as job:
        job.start(0)
        job.start(1)
        job.step(22)
        job.pods[1].send_signal(signal.SIGTERM)
        assert job.exits(1) == 143
        assert (
            "warning: machine-1: Kubernetes ends its pod; before that the job is stopped with a checkpoint" in job.log
        )
        step = json.loads((job.run_dir / "checkpoint.json").read_text())["step"]
        job.start(1, machine="machine-9")
        assert step > 20
        until(lambda: f"rank 0 of 2 from step {step}" in job.log, 20)
        assert job.state["nodes"] == ["machine-0", "machine-9"]


@pytest.mark.acceptance
def test_a_job_that_is_to_end_now_ends_at_once(tmp_path: Path) -> None:
    with job_of(tmp_path, steps=5000, pods=1) as job:
        job.start(0)
        job.step(2)
        files.write(job.run_dir / "stop.json", {"how": "now"})
        assert job.ends("CANCELLED", 10)["reason"].startswith("stopped ")
        assert job.exits(0) == 1 and not job.processes(0)
