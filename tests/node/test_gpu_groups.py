"""The measurement of NCCL's all-reduce in pods: its ranks, which without a GPU use gloo, and what they read of NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from gloo_ranks import free_port

from fabfile.launchers import nodes_to_text
from infra.inventory import Node
from node.job.rank_wrapper import RankPlacement
from node.probes import allreduce, gpu_ranks, groups
from node.probes.groups import Groups

ROOT = Path(__file__).resolve().parents[2]
NODES = [Node(name=name, private_ip="127.0.0.1", slots=slots) for name, slots in (("a", 2), ("b", 1), ("c", 1))]


@pytest.mark.acceptance
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


def test_nccl_writes_what_it_uses_to_the_file_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Path, dict[str, str]]] = []

    class Noted:
        def __init__(self, _place: RankPlacement, _enter: Any, log: Path) -> None:
            made.append((log, dict(os.environ)))

        def measure(self, address: str, **seconds: float) -> dict[str, Any]:
            return {"address": address, **seconds}

    place = RankPlacement({"TRAINYARD_NODES": nodes_to_text(NODES)})
    found: list[Any] = []
    monkeypatch.setattr(os, "environ", {**os.environ, "NCCL_DEBUG": "WARN"})  # as the job's plan has it
    monkeypatch.setattr(groups, "Groups", Noted)
    monkeypatch.setattr(allreduce, "run", lambda measure: found.append(measure(place, "a:1", lambda _phase: None)))
    gpu_ranks.main(["7", "60"])
    ((log, environment),) = made
    assert found == [{"address": "a:1", "timeout": 7.0, "budget": 60.0}]
    said = {name: value for name, value in environment.items() if name.startswith("NCCL_DEBUG")}
    assert said == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
        "NCCL_DEBUG_FILE": str(log),
    }
    assert not log.parent.exists(), "nothing of it is left"


def test_nccl_says_its_network_once_and_its_ways_for_each_group(tmp_path: Path) -> None:
    log = tmp_path / "nccl"
    found = Groups(RankPlacement({"TRAINYARD_NODES": nodes_to_text(NODES)}), lambda _phase: None, log)
    assert found._nccl(0) == {"network": "", "provider": "", "ways": [], "warning": ""}
    first = [
        "a:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)",
        "a:1:1 [0] NCCL INFO Using network AWS Libfabric",
        "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ]
    log.write_text("\n".join(first) + "\n")
    said = {"network": "AWS Libfabric", "provider": "efa", "warning": ""}
    assert found._nccl(0) == {**said, "ways": ["P2P"]}
    log.write_text("\n".join([*first, "a:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/AWS"]) + "\n")
    assert found._nccl(len(first)) == {**said, "ways": ["NET"]}
