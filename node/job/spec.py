"""What the verbs ask the head for, to start a job, and what the head asks of a keeper; each a line of JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabfile.launchers import KUBERNETES, SLURM, Launch
from fabfile.launchers.program import Program
from fabfile.launchers.program import from_record as program_of
from infra.inventory import Node, SshCluster, from_object, to_object
from node.job import files


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job as the user asked for it; spec.json in its directory on the head."""

    name: str
    """Name of the job's file; the job's id is NAME-NUMBER."""
    job: str
    """The resolved job.toml, as text; empty for a program."""
    runs: str
    """Folder of the run directories on every node, absolute or relative to the home directory."""
    code: str
    """Folder with the package `training` and with `launch`, on every node."""
    launcher: str
    cluster: SshCluster
    """Only the job's nodes, the head first; all among which the head or Slurm chooses, if there is a `count`. On
    Kubernetes a view of the cluster: its one node is the pod that answers the operator, and its queue says what each
    worker has."""
    timeout: float
    """Seconds without a heartbeat after which a rank counts as hung."""
    program: Program | None = None
    """The user's program that runs in the trainer's place; None: the trainer, with `job`."""
    threads: int = 0
    count: int = 0
    """How many nodes, with Slurm, with Kubernetes, and where the head chooses them; 0: those of `cluster`."""
    among: tuple[str, ...] = ()
    """The names of the nodes among which the head chooses: of a program those with its directory; empty: all."""
    time_limit: float = 0.0
    """Seconds from its start after which the job must be over, a checkpoint included; 0: no limit."""
    restarts: int = 0
    """How often the job may be started again after a failure."""
    after_losses_only: bool = False
    """Whether that is only for ranks, pods and machines that are lost, as nobody has asked for restarts: not for what
    its program would do again (node/job/endings.py)."""
    elastic: bool = False
    """Whether the job goes on without ranks that are lost, in the same attempt."""
    resume: str = ""
    """The id of the job to resume; empty: a new job."""
    mirrored: bool = False
    """Whether the bucket has the job to resume, so that it need not be on the nodes."""
    taken: tuple[str, ...] = ()
    """Job ids that other clusters have put into the bucket."""
    has_secrets: bool = False
    """Whether secrets came with it, such as a tracker's key; they themselves are on no disk of ours."""
    queue: bool = False
    """Whether it may wait for its nodes while other jobs have them."""
    price_per_hour: float = 0.0
    """US dollars per hour for all of its nodes together."""
    id: str = ""
    """Empty until the head has assigned it."""
    run_dir: str = ""
    """The job's directory, absolute; empty until the head has assigned it."""

    @property
    def node_names(self) -> list[str]:
        """In the inventory's order, the head first."""
        return [node.name for node in self.cluster.nodes]

    @property
    def candidates(self) -> list[str]:
        """The names of the nodes of which it gets some, or all, in the same order."""
        return [name for name in self.node_names if name in self.among] if self.among else self.node_names

    @property
    def node_count(self) -> int:
        """How many nodes the job has."""
        return self.count or len(self.cluster.nodes)

    @property
    def is_slurms(self) -> bool:
        """Whether Slurm runs it."""
        return self.launcher == SLURM

    @property
    def is_in_pods(self) -> bool:
        """Whether Kubernetes runs it."""
        return self.launcher == KUBERNETES

    @property
    def node_program(self) -> str:
        """The node program (see node/main.py) on every node."""
        return f"{self.code}/launch"

    def to_record(self) -> files.Record:
        """As a JSON object, for stdin of `create` and for spec.json."""
        return {**dataclasses.asdict(self), "cluster": to_object(self.cluster)}


def from_record(record: Mapping[str, Any]) -> JobSpec:
    """The reverse of `to_record`."""
    cluster = from_object(record["cluster"])
    assert isinstance(cluster, SshCluster)
    program = program_of(record["program"]) if record.get("program") else None
    names = {"taken": tuple(record["taken"]), "among": tuple(record.get("among", ()))}
    return JobSpec(**{**record, "cluster": cluster, "program": program, **names})


def of_job(run_dir: Path) -> JobSpec:
    """Read a job's spec from its directory on the head."""
    return from_record(files.read(run_dir / "spec.json"))


def job_nodes(cluster: SshCluster) -> tuple[Node, ...]:
    """The machines that run a cluster's jobs: those of its queue, if it has one. These have no fixed address, so their
    name stands for it."""
    queue = cluster.queue
    if queue is None:
        return cluster.nodes
    like = Node(
        name="",
        private_ip="",
        slots=queue.slots,
        cores_per_slot=queue.cores_per_slot,
        gpus=queue.gpus,
        gpu_architecture=queue.gpu_architecture,
        gpu_memory_gb=queue.gpu_memory_gb,
        nvlink_gb_per_s=queue.nvlink_gb_per_s,
        efa_cards=queue.efa_cards,
        efa_gbps=queue.efa_gbps,
        memory_gb=queue.memory_gb,
    )
    return tuple(dataclasses.replace(like, name=name, private_ip=name) for name in queue.node_names)


@dataclass(frozen=True, kw_only=True)
class KeeperSpec:
    """What the head sends to the keeper of one node at the start of an attempt."""

    id: str
    node: str
    run_dir: str
    job: str
    """The resolved job.toml, as text; empty for a program."""
    memory_gb: float = 0.0
    """The node's memory in GiB according to the inventory; 0: not known."""
    program: Mapping[str, Any] | None = None
    """The record of the user's program that runs in the trainer's place; None: the trainer, with `job`."""
    shared_dir: str = ""
    """The folder that all nodes share; empty: there is none."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The program's secrets; the trainer's, on the node of rank 0 alone."""


def keeper_spec(launch: Launch, node: Node) -> KeeperSpec:
    """What the keeper of a node is told of the trainer's job, or of the user's program. Read on the head. In a pod
    there are no secrets here: Kubernetes has put them into the environment."""
    held = files.read(files.secrets_of(launch.id))
    common: dict[str, Any] = {"id": launch.id, "node": node.name, "run_dir": launch.run_dir}
    common["memory_gb"] = node.memory_gb
    if launch.program is None:
        secrets = held if node == launch.nodes[0] else {}  # rank 0's, which may not run on the head
        job = (files.absolute(launch.run_dir) / "job.toml").read_text()
        return KeeperSpec(**common, job=job, secrets=secrets)
    wanted = {name: held[name] for name in launch.program.secrets if name in held}
    program = launch.program.to_record()
    return KeeperSpec(**common, job="", program=program, shared_dir=launch.shared_dir, secrets=wanted)
