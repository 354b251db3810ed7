"""Read runs for a report, from a cluster's head and nodes, or from a fetched folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from invoke.exceptions import Exit

from fabfile.backends.ssh.head import runs
from fabfile.remote import node_program
from fabfile.remote.command import Result
from fabfile.remote.fleet import Fleet
from fabfile.report.parse import run_of
from fabfile.report.run import Machine, Run
from infra.inventory import SshCluster
from node import run_data

_READY = 'exec cat "$TRAINYARD_PREFIX/var/lib/trainyard/ready.json"'  # the prefix is empty on a node
_TIMEOUT = 60


def from_folder(folder: Path) -> Run:
    """The run in a run directory on this machine; Exit 2 if it is none. Only its cluster knows its price."""
    if not (folder / "metrics.jsonl").exists() and not (folder / "job.toml").exists():
        raise Exit(f"{folder}: neither metrics.jsonl nor job.toml is there: this is no run directory", code=2)
    return run_of(run_data.collect(folder.absolute()))


def from_cluster(cluster: SshCluster, ids: Sequence[str]) -> list[Run]:
    """Runs on the head by their ids, with each node's ready.json. Exit 2 for an unknown run, 1 if the head is not
    reached."""
    head = cluster.head
    with Fleet(cluster) as fleet:
        result = node_program.run(fleet, "run-data", runs(cluster), *ids, nodes=[head], timeout=_TIMEOUT)[head.name]
        if not result.ok:
            raise Exit(result.reason or f"{result.node}: {result.why}", code=1)
        answer = json.loads(result.stdout)
        if "unknown" in answer:
            names = ", ".join(answer["there"][-20:]) or "none"
            raise Exit(f"no run {answer['unknown']!r} on {result.node}; there are: {names}", code=2)
        ready = fleet.run(_READY, timeout=_TIMEOUT)
    machines = [_machine(ready[node.name]) for node in cluster.nodes]
    slots = {node.name: node.slots for node in cluster.nodes}
    return [run_of(run, machines, slots, cluster.hourly_usd / len(cluster.nodes)) for run in answer["runs"]]


def _machine(result: Result) -> Machine:
    if not result.ok:
        return Machine(result.node, {}, f"not known now: {result.reason or result.why}")
    try:
        ready = json.loads(result.stdout)
    except ValueError:
        return Machine(result.node, {}, "its ready.json is no JSON")
    return Machine(result.node, ready if isinstance(ready, dict) else {})
