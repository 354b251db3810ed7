"""The measurement of NCCL's all-reduce in pods: its ranks, which without a GPU use gloo, and what they read of NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gloo_ranks import free_port

from fabfile.launchers import nodes_to_text
from infra.inventory import Node
from node.job.rank_wrapper import RankPlacement
from node.probes.groups import Groups

ROOT = Path(__file__).resolve().parents[2]
NODES = [Node(name=name, private_ip="127.0.0.1", slots=slots) for name, slots in (("a", 2), ("b", 1), ("c", 1))]


def test_the_groups_are_each_node_all_nodes_and_every_two() -> None:
    common = {"TRAINYARD_NODES": nodes_to_text(NODES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "node.main", "gpu-ranks", "60", "60"]
    ranks = [
        subprocess.Popen(
            command, env={**os.environ, **common, "RANK": str(rank)}, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for rank in range(4)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0, 0], outputs
    events = [json.loads(line) for output in outputs for line in output.splitlines()]
    found = {tuple(event["nodes"]): event for event in events if event["event"] == "nccl"}
    assert found.keys() == {("a",), ("a", "b", "c"), ("a", "b"), ("b", "c"), ("a", "c")}
    assert [found[group]["rank"] for group in (("a",), ("a", "b", "c"), ("b", "c"))] == [0, 0, 2]
    for event in found.values():
        assert event["wrong"] == 0 and event["bus"] > 1e6 and event["network"] == ""
    assert [event["rank"] for event in events if event["event"] == "result"] == [0]


def test_nccl_says_its_network_once_and_its_ways_for_each_group(tmp_path: Path) -> None:
    log = tmp_path / "nccl"
    groups = Groups(RankPlacement({"TRAINYARD_NODES": nodes_to_text(NODES)}), lambda _phase: None, log)
    assert groups._nccl(0) == {"network": "", "provider": "", "ways": [], "warning": ""}
    first = [
        "a:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)",
        "a:1:1 [0] NCCL INFO Using network AWS Libfabric",
        "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ]
    log.write_text("\n".join(first) + "\n")
    said = {"network": "AWS Libfabric", "provider": "efa", "warning": ""}
    assert groups._nccl(0) == {**said, "ways": ["P2P"]}
    log.write_text("\n".join([*first, "a:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/AWS"]) + "\n")
    assert groups._nccl(len(first)) == {**said, "ways": ["NET"]}
