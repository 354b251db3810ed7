"""`fab check` on Kubernetes measures the network by a job: its verdict, its time limit, what is left of it.

The API is a server of the test's own; a thread plays the job's pods and supervisor.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import Kube, deployed, pod
from kube_job import run_dir, state, warning

from fabfile.check import all_reduce_in_pods as checked
from fabfile.check import kubernetes as rules
from fabfile.check import launch, waiting_pods
from fabfile.check.measurement import GPUS, LINKS, Measurement
from fabfile.check.verdict import Verdict
from node.job.log import Log

Play = Callable[[Log], None]
FAST = [[None, 2e9, 2e9], [2e9, None, 2e9], [2e9, 2e9, None]]
RESULT = {"bytes": 16 << 20, "seconds": 0.05, "algbw": 3.3e8, "busbw": 4.4e8, "wrong": 0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in (
        (waiting_pods, "STILL_S", 0.4),
        (waiting_pods, "_LOOK_S", 0.1),
        (launch, "SILENT_ELSE_S", 1.0),
        (launch, "GRACE_S", 1.0),
    ):
        monkeypatch.setattr(module, name, seconds)


def playing(kube: Kube, play: Play, phase: str = "Running", **status: Any) -> None:
    """Have pods of a job that is applied on three machines, and what their supervisor's log says."""

    def applied(kube: Kube, one: dict[str, Any]) -> None:
        deployed(kube, one)
        if one["kind"] == "PyTorchJob":
            for number, name in enumerate(("master-0", "worker-0", "worker-1"), 1):
                made = pod(f"check-1-{name}", job="check-1", phase=phase, machine=f"machine{number}", **status)
                made["status"]["podIP"] = f"10.0.0.{number}"
                kube.put(made)
            log = Log(run_dir(kube, "check-1") / "log", "machine1")
            threading.Thread(target=play, args=(log,), daemon=True).start()

    kube.on_apply = applied


def event(log: Log, rank: int, **what: Any) -> None:
    log.add(time.time(), f"machine{rank + 1}", str(rank), json.dumps({"rank": rank, **what}))


def alive(log: Log, *ranks: int, phase: str = "link machine1 -> machine2") -> None:
    for rank in ranks:
        event(log, rank, event="alive", phase=phase)


def measured(log: Log, links: list[list[float | None]]) -> None:
    alive(log, 0, 1, 2)
    event(log, 0, event="result", links=links, **RESULT)


def verdict(kube: Kube, what: Measurement = LINKS) -> Verdict:
    return rules._verdict(what.check, lambda: checked.verdict(kube.cluster, what))


def is_gone(kube: Kube) -> bool:
    """Whether neither the job nor a pod of it is left."""
    return not [name for kind, name in kube.objects if kind in ("PyTorchJob", "Pod") and name.startswith("check")]


def test_the_job_is_a_process_on_each_machine_and_nothing_is_left_of_it(kube: Kube) -> None:
    playing(kube, lambda log: measured(log, FAST))
    found = verdict(kube)
    assert found.level == "pass" and found.check == "all-reduce", found.line()
    assert found.found == "6 links 2.0 GB/s to 2.0 GB/s; all-reduce of 16 MiB 330 MB/s (bus 440 MB/s), values right"
    (job,) = (one for one in kube.applied if one["kind"] == "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] + replicas["Worker"]["replicas"] == kube.cluster.workers
    assert is_gone(kube) and not run_dir(kube, "check-1").exists()


def test_a_slow_machine_is_named_and_its_log_stays(kube: Kube) -> None:
    slow = [[None, 2e9, 3e7], [2e9, None, 3e7], [3e7, 3e7, None]]
    playing(kube, lambda log: measured(log, slow))
    found = verdict(kube)
    assert found.level == "fail" and found.found.startswith(
        "slow: machine3 (to and from machine1, machine2): 30.0 MB/s"
    )
    assert found.mend == "fab logs check-1" and is_gone(kube)
    assert (run_dir(kube, "check-1") / "log").exists()


@pytest.mark.acceptance  # ten programs in the head pod
def test_a_machine_that_is_cut_off_is_named(kube: Kube) -> None:
    def play(log: Log) -> None:
        alive(log, 0, 1, 2)
        for _ in range(30):
            time.sleep(0.1)
            alive(log, 0, 1)

    playing(kube, play)
    found = verdict(kube)
    assert found.level == "fail" and "machine3 stopped answering during: link machine1 -> machine2" in found.found
    assert is_gone(kube)


@pytest.mark.acceptance  # ten programs in the head pod
def test_a_rank_that_fails_is_named_with_its_words(kube: Kube) -> None:
    def play(log: Log) -> None:
        alive(log, 0, 1, 2)
        event(log, 1, event="error", phase="meeting of the ranks", error="[10.0.0.3]:29500: Connection refused")

    playing(kube, play)
    found = verdict(kube)
    assert "machine2 in meeting of the ranks: [machine3]:29500: Connection refused" in found.found
    assert found.level == "fail" and is_gone(kube)


@pytest.mark.acceptance  # ten programs in the head pod
def test_pods_that_do_not_meet_are_named_with_their_last_words(kube: Kube) -> None:
    kube.logs["check-1-worker-1"] = "started\nthe supervisor on machine1 (10.0.0.1:7) cannot be reached: timed out\n"
    playing(kube, lambda log: log.say("waiting for the job's pods: 2 of 3 are there"))
    began = time.monotonic()
    found = verdict(kube)
    assert found.level == "fail" and time.monotonic() - began < 30
    said = "no rank begins: machine3 (pod check-1-worker-1): the supervisor on machine1 (machine1:7) cannot be reached"
    assert found.found.startswith(said), found.line()
    assert "last line of check-1: machine1: waiting for the job's pods: 2 of 3 are there" in found.found
    assert is_gone(kube)


@pytest.mark.acceptance  # ten programs in the head pod
def test_pods_that_no_machine_takes_are_named_with_the_reason(kube: Kube) -> None:
    kube.put(warning("e1", "Pod", "check-1-worker-0", "failed to mount fsx", "2026-01-01T00:00:00Z"))
    playing(kube, lambda log: None, phase="Pending")
    found = verdict(kube)
    assert "machine2 (pod check-1-worker-0): failed to mount fsx" in found.found, found.line()
    assert "machine1 (pod check-1-master-0): is not started there" in found.found


@pytest.mark.acceptance  # ten programs in the head pod
def test_a_pod_that_is_made_again_and_again_does_not_hold_it_up(kube: Kube) -> None:
    ended = threading.Event()

    def play(log: Log) -> None:
        name = ("Pod", "check-1-master-0")
        while not ended.wait(0.1) and name in kube.objects:
            made = kube.objects[name]
            kube.objects[name] = {**made, "metadata": {**made["metadata"], "uid": str(time.monotonic())}}

    playing(kube, play)
    began = time.monotonic()
    assert verdict(kube).level == "fail" and time.monotonic() - began < 30
    ended.set()


def test_machines_that_a_job_has_are_not_measured(kube: Kube) -> None:
    busy = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Master": {}}}}
    labels = {"trainyard.dev/job": "smoke-1", "trainyard.dev/stack": "kind"}
    kube.put({**busy, "metadata": {"name": "smoke-1", "namespace": "train", "labels": labels}})
    found = verdict(kube)
    assert found.level == "warn"
    assert found.found == "not tried: 2 of 3 machines free, 3 wanted; busy with smoke-1 (1)"
    assert is_gone(kube)


def test_ctrl_c_leaves_nothing_of_the_job(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    playing(kube, lambda log: None)
    monkeypatch.setattr(checked, "_follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verdict(kube)
    assert is_gone(kube) and not run_dir(kube, "check-1").exists()


@pytest.mark.acceptance  # ten programs in the head pod
def test_a_job_that_ends_without_a_measurement_says_why(kube: Kube, tmp_path: Path) -> None:
    def play(log: Log) -> None:
        alive(log, 0, phase="import of torch")
        state(kube, "check-1", state="FAILED", reason="rank 0 on machine1: exit code 1: no module named torch")

    playing(kube, play)
    assert "rank 0 on machine1: exit code 1: no module named torch" in verdict(kube).found


def with_gpus(kube: Kube) -> None:
    kube.cluster = replace(kube.cluster, gpus_per_worker=8, efa_per_worker=4, efa_gbps=400.0, nvlink_gb_per_s=300.0)


def all_begin(log: Log) -> None:
    """A rank of each machine speaks up."""
    for rank in (0, 9, 16):
        event = {"rank": rank, "event": "alive", "phase": "meeting of the ranks"}
        log.add(time.time(), f"machine{rank // 8 + 1}", str(rank), json.dumps(event))


def over(log: Log, *machines: int, bus: float, **what: Any) -> None:
    """What the first rank of these machines' says of NCCL's all-reduce over them."""
    names, said = [f"machine{number}" for number in machines], {"wrong": 0, "ways": ["P2P"], "warning": "", **what}
    number = machines[0] - 1
    line = {"rank": 8 * number, "event": "nccl", "nodes": names, "bus": bus, "network": "Libfabric", "provider": "efa"}
    log.add(time.time(), f"machine{machines[0]}", str(8 * number), json.dumps({**line, **said}))


def test_gpus_are_measured_by_nccl_with_a_rank_for_each(kube: Kube) -> None:
    def play(log: Log) -> None:
        all_begin(log)
        for number in (1, 2, 3):
            over(log, number, bus=240e9)
        for machines in ((1, 2, 3), (1, 2), (2, 3), (1, 3)):
            over(log, *machines, bus=45e9)
        log.add(time.time(), "machine1", "0", json.dumps({"rank": 0, "event": "result"}))

    with_gpus(kube)
    playing(kube, play)
    found = verdict(kube, GPUS)
    assert (found.check, found.level) == ("nccl", "pass"), found.line()
    assert found.found.endswith(
        "all-reduce over 24 GPUs bus 45.0 GB/s; 3 pairs bus 45.0 GB/s; over EFA; by torch's all-reduce"
    ), found.line()
    program = checked._submission(kube.cluster, GPUS, "/x/launch").program
    assert program and program.per == "slot" and program.argv[2:4] == ("/x/launch", "gpu-ranks")


@pytest.mark.acceptance  # ten programs in the head pod
def test_efa_that_is_off_fails_and_the_log_stays(kube: Kube) -> None:
    def play(log: Log) -> None:
        all_begin(log)
        over(log, 1, 2, 3, bus=4e9, network="Socket", provider="")
        log.add(time.time(), "machine1", "0", json.dumps({"rank": 0, "event": "result"}))

    with_gpus(kube)
    playing(kube, play)
    found = verdict(kube, GPUS)
    assert found.level == "fail" and found.mend == "fab logs check-1"
    assert found.found == "all 3 nodes: EFA is off: TCP (NCCL uses its sockets), 4.0 GB/s of 50.0 GB/s", found.line()


@pytest.mark.acceptance  # ten programs in the head pod
def test_a_gpu_s_rank_that_fails_is_named_by_its_machine(kube: Kube) -> None:
    def play(log: Log) -> None:
        all_begin(log)
        what = {"rank": 9, "event": "error", "phase": "all-reduce over machine2", "error": "NCCL: unhandled cuda error"}
        log.add(time.time(), "machine2", "9", json.dumps(what))

    with_gpus(kube)
    playing(kube, play)
    found = verdict(kube, GPUS)
    assert "machine2 in all-reduce over machine2: NCCL: unhandled cuda error" in found.found, found.line()
