"""Which nodes a job over SSH gets: all that it names, or, if it may choose, the first that are free. Runs on the head.

The head is the first of a cluster's nodes, so it is taken first. A job without it has its ranks' files, checkpoints and
metrics among them, on its own first node: `files_on` in its record. Its log and its record are on the head as ever.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from fabfile.launchers import KEEPERS
from infra.inventory import Node
from node.job import job_table
from node.job.files import Record
from node.job.spec import JobSpec


def taken(runs: Path, spec: JobSpec, job: str = "") -> dict[str, str]:
    """The nodes that the job cannot have now, each with the job that has it, or waits for it ahead of `job`."""
    names = spec.candidates
    found: dict[str, str] = {}
    for other in job_table.in_the_way(runs, set(names), job):
        for name in job_table.wants(other) & set(names):
            found.setdefault(name, other["id"])
    return found


def home(spec: JobSpec, record: Record) -> str:
    """The node with the files of the job to resume; empty: it has none yet, or those in a bucket or the shared folder.
    `record`: the job's."""
    if not spec.resume or spec.mirrored or spec.cluster.shared_dir or record.get("started", 0.0) is None:
        return ""
    return str(record.get("files_on", "")) or spec.cluster.head.name


def choose(spec: JobSpec, taken: Collection[str], home: str) -> list[str]:
    """The names of the job's nodes: the first that are free, with `home` before all others if the job has files there.
    Empty: not enough are free now."""
    names = [home, *(name for name in spec.candidates if name != home)] if home else spec.candidates
    free = [name for name in names if name not in taken]
    if len(free) < spec.node_count or home not in (*free[:1], ""):
        return []
    return free[: spec.node_count]


def waiting(spec: JobSpec) -> Record:
    """The record's part about the nodes, of a job that has none yet."""
    if spec.count:
        return {"nodes": [], "among": spec.candidates}
    return {"nodes": spec.node_names, "among": []}


def given(spec: JobSpec, names: Sequence[str]) -> Record:
    """The same of a job that gets these nodes."""
    is_elsewhere = names[0] != spec.cluster.head.name and not spec.cluster.shared_dir
    return {"nodes": list(names), "among": [], "queued": False, "files_on": names[0] if is_elsewhere else ""}


def launcher(spec: JobSpec, nodes: Sequence[Node]) -> str:
    """What starts the ranks on these nodes. mpirun runs on the head, in a scope that ends with the keeper there: where
    the head is not the first node, the keepers start the ranks."""
    is_own = spec.is_slurms or spec.is_in_pods
    return spec.launcher if is_own or nodes[0].name == spec.cluster.head.name else KEEPERS
