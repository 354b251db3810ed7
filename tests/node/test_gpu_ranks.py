"""Ranks on nodes with GPUs: NCCL's and EFA's environment in the plan, and cores on the NUMA node of each rank's GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fabfile import launchers
from fabfile.launchers import HeadValues, Launch, gpu, mpirun, nodes_to_text, torchrun
from infra.inventory import Node
from node.job import cores, rank_wrapper

P3DN = {"slots": 8, "gpus": 8, "gpu_architecture": "sm_70", "efa_cards": 1, "efa_gbps": 100.0}
P4D = {"slots": 8, "gpus": 8, "gpu_architecture": "sm_80", "efa_cards": 4, "efa_gbps": 400.0}
G5 = {"slots": 1, "gpus": 1, "gpu_architecture": "sm_86"}


def nodes(count: int, facts: dict[str, object]) -> tuple[Node, ...]:
    return tuple(Node(name=f"node{i}", private_ip=f"10.0.0.{i}", **facts) for i in range(1, count + 1))  # type: ignore[arg-type]


def launch(*which: Node) -> Launch:
    return Launch(id="demo-1", nodes=which, run_dir="/r", code="/c")


def of_ranks(argv: list[str]) -> dict[str, str]:
    return {argv[i + 1]: argv[i + 2] for i, word in enumerate(argv) if word == "-genv"}


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (P3DN, {"FI_PROVIDER": "efa"}),  # EFA does not read a V100's memory
        (P4D, {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}),
        (G5, {}),
    ],
    ids=["p3dn", "p4d", "g5"],
)
def test_the_plan_has_what_nccl_and_efa_need(facts: dict[str, object], wanted: dict[str, str]) -> None:
    plan = mpirun.plan(launch(*nodes(2, facts)), HeadValues(interface="ens5"))
    found = of_ranks(plan.argv)
    assert {key: value for key, value in found.items() if key.startswith("FI_")} == wanted
    assert (found["NCCL_SOCKET_IFNAME"], found["NCCL_DEBUG"]) == ("ens5", "WARN")
    assert "ACCELERATE_USE_CPU" not in found


def test_a_dry_run_shows_it() -> None:
    shown = launchers.shown(mpirun.plan(launch(*nodes(2, P3DN)), HeadValues()))
    assert "-genv FI_PROVIDER efa" in shown and "-genv NCCL_SOCKET_IFNAME $INTERFACE" in shown
    assert "mpirun -n 16 -ppn 8" in shown and "FI_EFA_USE_DEVICE_RDMA" not in shown
    alone = torchrun.plan(launch(*nodes(1, P3DN)), HeadValues())
    assert alone.environment["FI_PROVIDER"] == "efa" and "NCCL_SOCKET_IFNAME" not in alone.environment


def test_efa_is_used_only_where_every_node_has_it() -> None:
    mixed = (*nodes(1, P3DN), *nodes(2, G5)[1:])
    assert "FI_PROVIDER" not in gpu.environment(mixed, "ens5")
    assert "FI_EFA_USE_DEVICE_RDMA" not in gpu.environment((*nodes(1, P3DN), *nodes(2, P4D)[1:]), "ens5")
    assert gpu.environment(nodes(2, {}), "ens5") == {}


# --- cores beside the GPU ---

TWO_SOCKETS = [(cpu, cpu, cpu // 24) for cpu in range(48)]
"""A p3dn.24xlarge without hyper-threads: 24 cores on each of two NUMA nodes."""


def test_a_rank_gets_cores_of_its_gpus_numa_node() -> None:
    straight = cores.shares(TWO_SOCKETS, 8, [0, 0, 0, 0, 1, 1, 1, 1], False)
    assert [cores.ranges(each) for each in straight] == [f"{6 * rank}-{6 * rank + 5}" for rank in range(8)]
    crossed = cores.shares(TWO_SOCKETS, 8, [1, 1, 0, 0, 1, 1, 0, 0], False)
    assert [cores.ranges(each) for each in crossed[:4]] == ["24-29", "30-35", "0-5", "6-11"]
    assert sorted(cpu for each in crossed for cpu in each) == list(range(48)), "each core once"


def test_cores_are_cut_evenly_where_that_cannot_be() -> None:
    even = [cores.share(TWO_SOCKETS, 2, rank, False) for rank in range(2)]
    assert cores.shares(TWO_SOCKETS, 2, [], False) == even, "no GPUs"
    assert cores.shares(TWO_SOCKETS, 2, [0, 0, 1, 1], False) == even, "another number of ranks than of GPUs"
    assert cores.shares(TWO_SOCKETS, 2, [3, 3], False) == even, "a NUMA node without cores"
    assert cores.shares(TWO_SOCKETS, 2, [0, 1], True) == [[], []], "a machine that others use too"


def test_the_numa_nodes_of_gpus_are_in_the_order_of_the_bus(tmp_path: Path) -> None:
    proc, bus = tmp_path / "gpus", tmp_path / "devices"
    for name, node in (("0000:00:1E.0", "1"), ("0000:00:16.0", "0")):  # the driver writes capitals, sysfs does not
        (proc / name).mkdir(parents=True)
        (bus / name.lower()).mkdir(parents=True)
        (bus / name.lower() / "numa_node").write_text(f"{node}\n")
    assert cores.gpu_nodes(proc, bus) == [0, 1]
    (bus / "0000:00:16.0" / "numa_node").write_text("-1\n")
    assert cores.gpu_nodes(proc, bus) == [], "the kernel does not know"
    assert cores.gpu_nodes(tmp_path / "no-driver", bus) == []


@pytest.mark.parametrize("rank", [0, 3, 4, 7])
def test_a_rank_is_pinned_to_the_cores_of_its_gpus_numa_node(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose driver and bus say that the first four GPUs are on the second socket."""
    proc, bus = tmp_path / "gpus", tmp_path / "devices"
    for number in range(8):
        name = f"0000:00:{number + 16:x}.0"
        (proc / name).mkdir(parents=True)
        (bus / name).mkdir(parents=True)
        (bus / name / "numa_node").write_text(f"{int(number < 4)}\n")
    gpu_nodes = cores.gpu_nodes
    pinned: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(rank_wrapper, "READY", tmp_path / "none")
    monkeypatch.setattr(cores, "gpu_nodes", lambda: gpu_nodes(proc, bus))
    monkeypatch.setattr(cores, "topology", lambda: TWO_SOCKETS)
    monkeypatch.setattr(cores, "is_shared", lambda: False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, which: pinned.append((pid, list(which))))
    monkeypatch.setenv("TRAINYARD_JOB", "demo-1")
    monkeypatch.setenv("TRAINYARD_INTERFACE", "ens5")
    for kept in ("TRAINYARD_COLLECTIVES", "TRAINYARD_THREADS"):
        monkeypatch.delenv(kept, raising=False)
    facts = {**P3DN, "cores_per_slot": 6}
    place = rank_wrapper.RankPlacement({"PMI_RANK": str(8 + rank), "TRAINYARD_NODES": nodes_to_text(nodes(2, facts))})
    lines: list[str] = []
    environment = rank_wrapper.from_node(place, lines.append)
    first = (24 if rank < 4 else 0) + 6 * (rank % 4)
    assert pinned == [(0, list(range(first, first + 6)))], "of its own process"
    assert lines[0].startswith(f"on node2: 6 threads on cores {first}-{first + 5};")
    assert environment["OMP_NUM_THREADS"] == "6"


# --- what the ranks talk through ---


@pytest.mark.parametrize(
    ("profile", "said", "wanted"),
    [
        ("cuda", "", "nccl"),  # the record's own word is of the image's two ranks, which need no GPU
        ("native", "", "gloo"),
        ("cuda", "gloo", "gloo"),
    ],
)
@pytest.mark.parametrize("number", ["PMI_RANK", "SLURM_PROCID"], ids=["mpirun", "srun"])
def test_ranks_on_gpus_talk_through_nccl_by_their_nodes_record(
    number: str, profile: str, said: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text(json.dumps({"profile": profile, "collectives": "gloo"}))
    monkeypatch.setattr(rank_wrapper, "READY", ready)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, _cores: None)
    monkeypatch.setenv("TRAINYARD_JOB", "demo-1")
    monkeypatch.setenv("TRAINYARD_INTERFACE", "ens5")
    monkeypatch.setenv("TRAINYARD_COLLECTIVES", said)
    place = rank_wrapper.RankPlacement({number: "9", "TRAINYARD_NODES": nodes_to_text(nodes(2, P3DN))})
    lines: list[str] = []
    environment = rank_wrapper.from_node(place, lines.append)
    assert (environment["TRAINYARD_NODE"], environment["TRAINYARD_COLLECTIVES"]) == ("node2", wanted)
    assert environment["NCCL_SOCKET_IFNAME"] == "ens5" and lines[0].endswith(f"; {wanted} over ens5")
