"""`fab check`'s measurement in a job of Slurm's: what Slurm is asked, which node is which rank, and that it ends."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from small_cluster import cluster

from fabfile.launchers import HeadValues, Launch, plans
from infra.inventory import Queue, SshCluster, to_object
from node import route
from node.probes import slurm_launch
from node.slurm import queue
from node.slurm.queue import SlurmError

LOCAL = replace(cluster(3, slots=2, cores_per_slot=3), launcher="slurm", shared_dir="/fsx")
GPUS = replace(cluster(1), queue=Queue(name="queue1", nodes=2, node_prefix="q-dy-n", slots=8, cores_per_slot=6, gpus=8))


class Slurm:
    """Slurm's commands, as far as the probe uses them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        self.refuses = ""
        self.launched: list[tuple[Launch, HeadValues]] = []
        self.step = "import os; print('{\"event\": \"result\"}', os.environ['SLURM_JOB_ID'])"
        monkeypatch.setattr(queue, "ask", self.ask)
        monkeypatch.setattr(socket, "gethostbyname", lambda name: name)
        monkeypatch.setattr(route, "interface", lambda _address: "ens5")
        monkeypatch.setattr(plans, "plan", self.plan)
        self.cancelled = threading.Event()

    def ask(self, argv: list[str], **_: Any) -> str:
        self.asked.append(argv)
        if argv[0] == "salloc" and self.refuses:
            raise SlurmError(self.refuses)
        if argv[0] == "scancel":
            self.cancelled.set()
        return {"squeue": "17 node[1-3]\n", "scontrol": "node2\nnode1\nnode3\n"}.get(argv[0], "")

    def plan(self, _launcher: str, launch: Launch, found: HeadValues) -> Any:
        self.launched.append((launch, found))
        line = subprocess.list2cmdline([sys.executable, "-c", self.step])
        return type("Plan", (), {"shell": f"exec {line}"})

    def of(self, command: str) -> list[list[str]]:
        return [argv for argv in self.asked if argv[0] == command]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


Probe = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Probe:
    def run(there: SshCluster = LOCAL, per: str = "node", seconds: float = 20) -> list[dict[str, Any]]:
        spec = {
            "id": "check-1",
            "cluster": to_object(there),
            "seconds": seconds,
            "per": per,
            "probe": ["x", "{program}"],
        }
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(spec) + "\n"))
        monkeypatch.setattr(slurm_launch, "end_with_stdin", lambda _name: None)
        slurm_launch.main([])
        lines = capfd.readouterr().out.splitlines()
        return [json.loads(line.rpartition("}")[0] + "}") for line in lines]

    return run


def test_all_nodes_are_asked_for_whole_and_at_once(slurm: Slurm, probe: Probe) -> None:
    events = probe()
    (asked,) = slurm.of("salloc")
    assert {"--no-shell", "--immediate=5", "--job-name=check-1", "--exclusive", "--nodes=3", "--time=2"} <= set(asked)
    assert [event["event"] for event in events] == ["nodes", "result", "end"]
    assert events[-1] == {"event": "end", "exited": 0, "late": False}
    assert slurm.of("scancel") == [["scancel", "--name=check-1", "--me"]], "the nodes are given back"
    assert "--partition=queue1" in slurm_launch.allocation({"id": "x", "seconds": 1, "per": "slot"}, GPUS)
    assert "--gpus-per-node=8" in slurm_launch.allocation({"id": "x", "seconds": 1, "per": "slot"}, GPUS)


def test_the_ranks_are_in_slurms_order(slurm: Slurm, probe: Probe) -> None:
    events = probe()
    assert events[0] == {"event": "nodes", "names": ["node2", "node1", "node3"]}
    ((launch, found),) = slurm.launched
    assert [(node.name, node.slots, node.cores_per_slot) for node in launch.nodes] == [
        *(("node2", 1, 6), ("node1", 1, 6)),
        ("node3", 1, 6),
    ]
    assert launch.probe == ("x", sys.argv[0]) and found.master == "10.0.0.2" and found.interface == "ens5"
    probe(per="slot")
    assert [node.slots for node in slurm.launched[-1][0].nodes] == [2, 2, 2]


def test_nodes_that_are_taken_are_said(slurm: Slurm, probe: Probe) -> None:
    slurm.refuses = "Unable to allocate resources: Requested nodes are busy"
    assert probe() == [{"event": "refused", "why": slurm.refuses}]
    assert slurm.of("scancel") and not slurm.launched


def test_a_probe_that_does_not_end_is_ended(slurm: Slurm, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.step = "import time; time.sleep(60)"
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*argv: Any, **options: Any) -> Any:
        started.append(popen(*argv, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(slurm_launch, "cancel", lambda _name: started[-1].kill())  # as Slurm does it
    assert probe(seconds=0.5)[-1] == {"event": "end", "exited": -9, "late": True}


def test_an_operator_who_is_gone_ends_it(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "read", lambda *_: b"")
    slurm_launch.end_with_stdin("check-1")
    assert slurm.cancelled.is_set()
