"""`fab check` where Slurm runs the jobs: sinfo's states, munge's answers, and when an all-reduce by srun is tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from small_cluster import cluster

from fabfile.check import launch, preflight, slurm
from fabfile.check.launch import ProbeRun
from fabfile.check.node_rules import CLOCKS
from fabfile.check.verdict import Fact, Verdict
from fabfile.remote.command import Result
from infra.inventory import Node, Queue, SshCluster

LOCAL = replace(cluster(3), launcher="slurm", shared_dir="/fsx")
QUEUE = Queue(
    name="queue1", nodes=2, node_prefix="queue1-dy-node", slots=8, gpus=8, hourly_usd=31.2,
    gpu_architecture="sm_70", efa_cards=1, efa_gbps=100.0, nvlink_gb_per_s=150.0,
)  # fmt: skip
CLOUD = replace(LOCAL, nodes=(Node(name="head", private_ip="10.0.0.1", role="head"),), queue=QUEUE)
RESULT = {
    **{"event": "result", "rank": 0, "wrong": 0, "bytes": 2**26, "algbw": 1e9, "busbw": 1.3e9},
    "links": [[None, 1e9, 1e9], [1e9, None, 1e9], [1e9, 1e9, None]],
}


@dataclass
class Fleet:
    """Nodes that answer sinfo, munge and unmunge."""

    cluster: SshCluster
    sinfo: str
    unmunge: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By node; others take the credential."""

    def run(self, command: str, *, nodes: Iterable[Node], **_: Any) -> dict[str, Result]:
        return {node.name: self._one(command, node.name) for node in nodes}

    def _one(self, command: str, name: str) -> Result:
        if command.startswith("sinfo"):
            down = Result(name, 1, stderr="slurm_load_partitions: Unable to contact slurm controller\n")
            return Result(name, 0, stdout=self.sinfo) if self.sinfo else down
        if command.startswith("munge"):
            return Result(name, 0, stdout="MUNGE:AwQFAAD:\n")
        assert command.startswith("echo MUNGE:AwQFAAD: | unmunge ")
        code, said = self.unmunge.get(name, (0, ""))
        return Result(name, code, stderr=f"unmunge: Error: {said}\n" if code else "")


def rows(*words: str) -> str:
    return "".join(f"node{n} {word} none\n" for n, word in enumerate(words, 1))


def facts(there: SshCluster, *, lost: str = "") -> dict[str, Fact]:
    found = {name: Fact(name) for name in preflight.ALL_FACTS}
    for node in there.nodes:
        for name in ("reach", "launch"):
            found[name].missing.update({lost: "no answer"} if node.name == lost else {})
        if node.name != lost:
            found["launch"].values[node.name] = {"missing": []}
    return found


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, ProbeRun]:
    """What a measurement gives, by the program that its ranks run; and what was asked, under `asked`."""
    by_program: dict[str, ProbeRun] = {}

    def on_slurm(_cluster: SshCluster, session: str, **asked: Any) -> ProbeRun:
        by_program["asked"] = ProbeRun(events=[{"session": session, **asked}])
        return next(run for program, run in by_program.items() if program in asked["probe"])

    monkeypatch.setattr(launch, "on_slurm", on_slurm)
    return by_program


def verdicts(fleet: Fleet, *, lost: str = "") -> dict[str, Verdict]:
    there: Any = fleet.cluster
    sessions: Any = {node.name: node.name for node in there.nodes if node.name != lost}
    played: Any = fleet
    return {one.check: one for one in slurm.verdicts_of(there, played, sessions, facts(there, lost=lost))}


def test_three_idle_nodes_are_measured_by_srun(measured: dict[str, ProbeRun]) -> None:
    measured["allreduce"] = ProbeRun(events=[{"event": "nodes", "names": ["node1", "node2", "node3"]}, RESULT])
    found = verdicts(Fleet(LOCAL, rows("idle", "idle", "idle")))
    assert [one.level for one in found.values()] == ["pass"] * 3
    assert found["slurm"].found == "3 nodes: 3 idle"
    assert found["munge"].found == "a credential of node1 is taken on 3 nodes"
    assert found["all-reduce"].found == (
        "6 links 1.0 GB/s to 1.0 GB/s; all-reduce of 64 MiB 1.0 GB/s (bus 1.3 GB/s), values right, started by srun"
    )
    (asked,) = measured["asked"].events
    assert (asked["session"], asked["per"], asked["ranks"]) == ("node1", "node", 3)


def test_the_ranks_are_named_in_slurms_order(measured: dict[str, ProbeRun]) -> None:
    links = [[None, 1e9, 1e9], [1e9, None, 1e9], [1e6, 1e6, None]]
    names = {"event": "nodes", "names": ["node2", "node3", "node1"]}
    measured["allreduce"] = ProbeRun(events=[names, {**RESULT, "links": links}])
    found = verdicts(Fleet(LOCAL, rows("idle", "idle", "idle")))["all-reduce"]
    assert found.level == "fail" and found.found.startswith("slow: node1 sending (to node2, node3): 1.0 MB/s")


def test_what_sinfo_says_is_told_and_nothing_is_measured() -> None:
    found = verdicts(Fleet(LOCAL, "node1 idle none\nnode2 down* Not responding\n"))
    assert (found["slurm"].level, found["slurm"].mend) == ("fail", "fab wait")
    assert found["slurm"].found == "node2 is down* (Not responding); node3 is unknown to Slurm"
    assert (found["all-reduce"].level, found["all-reduce"].found) == ("warn", "not tried: Slurm cannot use all nodes")


def test_a_slurmctld_that_does_not_answer_is_named_and_munge_is_asked_all_the_same() -> None:
    found = verdicts(Fleet(LOCAL, "", {"node3": (14, "Invalid credential")}))
    assert found["slurm"].found == (
        "slurmctld does not answer: slurm_load_partitions: Unable to contact slurm controller"
    )
    assert "journalctl -u slurmctld" in found["slurm"].mend
    assert (found["munge"].level, found["munge"].found) == (
        *("fail", "node3: exit code 14: unmunge: Error: Invalid credential"),
    )
    assert "munge.key" in found["munge"].mend and found["all-reduce"].level == "warn"


@pytest.mark.parametrize(
    ("said", "why", "mend"),
    [
        ((16, ""), "node2 takes a new credential of node1 for one from the future: their clocks", CLOCKS),
        ((15, ""), "node2 takes a new credential of node1 for an expired one: their clocks", CLOCKS),
        ((6, "no socket"), "node2: exit code 6: unmunge: Error: no socket", "fab ssh node2, then: sudo systemctl"),
    ],
)
def test_a_node_that_does_not_take_a_credential_is_named(said: tuple[int, str], why: str, mend: str) -> None:
    found = verdicts(Fleet(LOCAL, rows("idle", "idle", "allocated"), {"node2": said}))["munge"]
    assert found.level == "fail" and found.found.startswith(why) and found.mend.startswith(mend)


def test_a_job_that_has_nodes_is_left_alone(measured: dict[str, ProbeRun]) -> None:
    found = verdicts(Fleet(LOCAL, rows("idle", "allocated", "idle")))
    assert found["slurm"].found == "3 nodes: 2 idle, 1 allocated"
    assert (found["all-reduce"].level, found["all-reduce"].mend) == ("warn", "fab jobs")
    assert found["all-reduce"].found == "not tried: node2 is allocated" and not measured
    measured["allreduce"] = ProbeRun(events=[{"event": "refused", "why": "Requested nodes are busy"}])
    found = verdicts(Fleet(LOCAL, rows("idle", "idle", "idle")))
    assert found["all-reduce"].found == "not tried: Requested nodes are busy", "one that came in between"


def test_a_node_that_is_not_reached_is_said_and_a_head_ends_it() -> None:
    found = verdicts(Fleet(LOCAL, rows("idle", "idle", "idle")), lost="node3")
    assert found["munge"].found == "a credential of node1 is taken on 2 nodes"
    assert found["all-reduce"].found == "not tried without node3"
    assert list(verdicts(Fleet(LOCAL, ""), lost="node1")) == ["slurm"]


# --- a queue, whose machines cost ---


def of_queue(*words: str) -> Fleet:
    return Fleet(CLOUD, "".join(f"queue1-dy-node-{n} {word} none\n" for n, word in enumerate(words, 1)))


def test_no_machine_is_started_for_a_check(measured: dict[str, ProbeRun]) -> None:
    found = verdicts(of_queue("idle~", "idle~"))
    assert found["slurm"].found == "2 nodes: 2 idle~" and not measured
    assert found["all-reduce"].found == "not tried: Slurm would start 2 machines for it ($62.40 an hour)"
    assert found["all-reduce"].mend.startswith("fab launch --per node --nodes 2 -- true")
    assert "is mixed" in verdicts(of_queue("idle~", "mixed"))["all-reduce"].found


def test_the_gpus_of_machines_that_run_are_measured_by_nccl(measured: dict[str, ProbeRun]) -> None:
    there = ["queue1-dy-node-1", "queue1-dy-node-2"]
    names = {"event": "nodes", "names": there}
    measured["allreduce"] = ProbeRun(events=[names, {**RESULT, "links": [[None, 1e9], [1e9, None]]}])
    tcp = {"event": "nccl", "rank": 0, "nodes": there, "bus": 3e9, "wrong": 0, "ways": [], "warning": ""}
    measured["gpu-ranks"] = ProbeRun(events=[names, {**tcp, "network": "Socket", "provider": ""}])
    found = verdicts(of_queue("idle", "idle"))
    assert found["all-reduce"].level == "pass"
    assert found["nccl"].found == "all 2 nodes: EFA is off: TCP (NCCL uses its sockets), 3.0 GB/s of 12.5 GB/s"
    (asked,) = measured["asked"].events
    assert (asked["session"], asked["per"], asked["ranks"]) == ("head", "slot", 16)


def test_a_queues_head_is_not_judged_by_what_matters_only_where_ranks_run(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, ProbeRun]
) -> None:
    """Its host name is Slurm's: to mend that by `hostnamectl` would take ParallelCluster's nodes away from it."""
    cpu = {"bf16": False, "amx_bf16": False, "avx512_bf16": False, "model": "Xeon"}

    def collected(collector: preflight.Collector) -> Iterator[Fact]:
        name = collector.cluster.head.name
        collector.sessions[name] = name  # type: ignore[assignment]
        yield Fact("reach", {name: {}})
        yield Fact("launch", {name: {"missing": []}})
        yield Fact("cpu", {name: cpu})
        yield Fact("names", {name: {"hostname": "ip-10-0-0-1", "wrong": {}}})

    monkeypatch.setattr(preflight.Collector, "facts", collected)
    played: Any = of_queue("idle~", "idle~")
    checks = [one.check for one in preflight.verdicts_of(CLOUD, played)]
    assert checks == ["reach", "slurm", "munge", "all-reduce"] and not measured
    there: Any = Fleet(LOCAL, rows("idle", "allocated", "idle"))
    assert [one.check for one in preflight.verdicts_of(LOCAL, there)][:3] == ["reach", "bf16", "names"]
