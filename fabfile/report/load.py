"""Read runs for a report, from a cluster or from a fetched folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from invoke.exceptions import Exit

from fabfile.backends.base import Backend
from fabfile.report.parse import run_of
from fabfile.report.run import Machine, Run
from node import run_data


def from_folder(folder: Path) -> Run:
    """The run in a run directory on this machine; Exit 2 if it is none. Only its cluster knows its price."""
    if not (folder / "metrics.jsonl").exists() and not (folder / "job.toml").exists():
        raise Exit(f"{folder}: neither metrics.jsonl nor job.toml is there: this is no run directory", code=2)
    return run_of(run_data.collect(folder.absolute()))


def from_cluster(backend: Backend, ids: Sequence[str]) -> list[Run]:
    """Runs of a cluster by their ids. Exit 2 for an unknown run, 1 if the cluster does not answer."""
    with backend:
        runs, records = backend.run_data(ids), backend.ready_records()
    nodes = backend.nodes()
    machines = [_machine(node.name, records[node.name]) for node in nodes]
    return [run_of(run, machines, {node.name: node.ranks for node in nodes}, nodes[0].usd_per_hour) for run in runs]


def _machine(name: str, record: object) -> Machine:
    if isinstance(record, Exception):
        return Machine(name, {}, str(record))
    return Machine(name, record if isinstance(record, dict) else {})
