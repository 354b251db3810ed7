"""Where a run's facts come from: the head of a cluster and the nodes of the run, or a folder that was fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.ssh.head import runs
from fabfile.remote import node_program
from fabfile.remote.command import Result
from fabfile.remote.fleet import Fleet
from fabfile.report.facts import Machine, Run
from fabfile.report.reading import run_of
from infra.inventory import SshCluster
from node import run_data

_READY = 'exec cat "$TRAINYARD_PREFIX/var/lib/trainyard/ready.json"'  # the prefix is empty on a node
_TIMEOUT = 60


def from_folder(folder: Path) -> Run:
    """A run directory on this machine; what it cost is known to its cluster alone."""
    if not (folder / "metrics.jsonl").exists() and not (folder / "job.toml").exists():
        raise Exit(f"{folder}: neither metrics.jsonl nor job.toml is there: this is no run directory", code=2)
    return run_of(run_data.collect(folder.absolute()))


def from_cluster(cluster: SshCluster, ids: Sequence[str]) -> list[Run]:
    """The runs on the head; what the nodes are, from each of them, as they are now."""
    with Fleet(cluster) as fleet:
        head = cluster.head
        told = _told(
            node_program.run(fleet, "run-data", runs(cluster), *ids, nodes=[head], timeout=_TIMEOUT)[head.name]
        )
        ready = fleet.run(_READY, timeout=_TIMEOUT)
    machines = [machine_of(ready[node.name]) for node in cluster.nodes]
    slots = {node.name: node.slots for node in cluster.nodes}
    return [run_of(each, machines, slots, cluster.hourly_usd / len(cluster.nodes)) for each in told]


def _told(result: Result) -> list[dict[str, Any]]:
    if not result.ok:
        raise Exit(result.reason or f"{result.node}: {result.why}", code=1)
    answer: dict[str, Any] = json.loads(result.stdout)
    if "unknown" in answer:
        names = ", ".join(answer["there"][-20:]) or "none"
        raise Exit(f"no run {answer['unknown']!r} on {result.node}; there are: {names}", code=2)
    told: list[dict[str, Any]] = answer["runs"]
    return told


def machine_of(result: Result) -> Machine:
    if not result.ok:
        return Machine(result.node, {}, f"not known now: {result.reason or result.why}")
    try:
        ready: Mapping[str, Any] = json.loads(result.stdout)
    except ValueError:
        return Machine(result.node, {}, "its ready.json is no JSON")
    return Machine(result.node, ready if isinstance(ready, dict) else {})
