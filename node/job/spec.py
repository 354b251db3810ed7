"""What is asked for with `fab train`, and what a keeper is told: made once, sent as one line of JSON, read once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.inventory import SshCluster, from_object, to_object
from node.job import files


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job as it was asked for; spec.json in its directory on the head."""

    name: str
    """Of the job's file; the id is this with a number."""
    job: str
    """The resolved job.toml, as text."""
    runs: str
    """Folder of the jobs' directories on every node, absolute or relative to the home."""
    code: str
    """Folder with the package `training` and with `launch`, on every node."""
    launcher: str
    cluster: SshCluster
    """With the job's nodes alone."""
    timeout: float
    """Seconds without a heartbeat after which a rank counts as hung."""
    threads: int = 0
    restarts: int = 0
    """How often the job may be started again after a failure."""
    resume: str = ""
    """The id of the job to go on with; empty: a new job."""
    mirrored: bool = False
    """Of a resumed job: whether the bucket has it, so that the nodes need not."""
    taken: tuple[str, ...] = ()
    """Ids that the bucket has from other clusters."""
    queue: bool = False
    """Whether it may wait for its nodes."""
    price_per_hour: float = 0.0
    """US dollars for all of its nodes."""
    id: str = ""
    """Empty until the head has given it one."""
    run_dir: str = ""
    """The job's directory, absolute; likewise."""

    @property
    def node_names(self) -> list[str]:
        """In the inventory's order, the head first."""
        return [node.name for node in self.cluster.nodes]

    @property
    def program(self) -> str:
        """The program that the job runs with on every node."""
        return f"{self.code}/launch"

    def to_record(self) -> files.Record:
        """For a line of JSON, or spec.json."""
        return {**dataclasses.asdict(self), "cluster": to_object(self.cluster)}


def from_record(record: Mapping[str, Any]) -> JobSpec:
    """The spec that `to_record` made this of."""
    cluster = from_object(record["cluster"])
    assert isinstance(cluster, SshCluster)
    return JobSpec(**{**record, "cluster": cluster, "taken": tuple(record["taken"])})


def of_job(run_dir: Path) -> JobSpec:
    """The spec of a job from its directory on the head."""
    return from_record(files.read(run_dir / "spec.json"))


@dataclass(frozen=True, kw_only=True)
class KeeperSpec:
    """What the keeper of one node is told of an attempt."""

    id: str
    node: str
    run_dir: str
    job: str
    """The resolved job.toml, as text."""
    lease: float
    """Seconds without a word from the head after which the keeper ends the node's ranks."""
    memory_gb: float = 0.0
    """The node's memory in GiB by the inventory; 0: not known."""
