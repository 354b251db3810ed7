"""The contract between provisioning and running: the output of `pulumi stack output inventory`.

    Pulumi program  ->  to_json()  ->  stack output (or a hand-written file)  ->  from_json()  ->  Fabric tasks

It has all that a task needs to reach and use a cluster, and never secrets. The head node comes first. A hand-written
file needs only `schema`, `kind` and, per node, `name` and `private_ip`. Imports only the standard library.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from infra.inventory_types import (
    Address,
    Amount,
    Bucket,
    CertificateData,
    ClusterName,
    Count,
    Devices,
    Endpoint,
    GpuArchitecture,
    HostKey,
    HostName,
    HostOrAddress,
    Image,
    Interface,
    JumpHost,
    LocalPath,
    SharedPath,
    SharedPaths,
    Span,
    UserName,
    build,
)
from infra.inventory_types import (
    InventoryError as InventoryError,
)

SCHEMA = 1
"""The contract's version that this code writes; it reads this one and older ones."""

Launcher = Literal["mpirun", "slurm"]
Role = Literal["head", "worker"]
Authentication = Literal["kubeconfig", "eks"]
JobKind = Literal["PyTorchJob", "TrainJob"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine of an SSH cluster."""

    name: HostName
    """Host name, for the other nodes and for `ssh <name>`."""
    private_ip: Address
    """Address in the cluster's own network."""
    role: Role = "worker"
    ssh_host: HostOrAddress = ""
    """Address of its sshd (seen from the jump host, if there is one); default: private_ip."""
    ssh_port: Annotated[int, Span(1, 65535)] = 22
    slots: Count = 1
    """Ranks on this node: one per NUMA node or per GPU."""
    cores_per_slot: Count = 1
    """Physical cores per rank."""
    gpus: Devices = 0
    gpu_architecture: GpuArchitecture = ""
    """Such as sm_70; empty: no GPUs, or unknown."""
    gpu_memory_gb: Amount = 0.0
    """Memory of each GPU in GiB; 0: unknown."""
    nvlink_gb_per_s: Amount = 0.0
    """GB/s that each GPU sends over its NVLinks; 0: it has none, or that is unknown."""
    efa_cards: Devices = 0
    """Elastic Fabric Adapters, AWS's network cards for collectives."""
    efa_gbps: Amount = 0.0
    """Gbit/s of all of them together, in each direction."""
    memory_gb: Amount = 0.0
    """Memory in GiB; 0: unknown."""
    host_key: HostKey = ""
    """Public SSH host key, `ssh-ed25519 AAAA...`; empty: use the operator's known_hosts."""
    console: LocalPath = ""
    """File on the operator's machine with the node's console output; empty: none."""
    control_group: LocalPath = ""
    """Control group below /sys/fs/cgroup of a node on the operator's machine: without a process when the node has
    ended. Empty: the node runs elsewhere, and only SSH can tell."""

    @property
    def address(self) -> str:
        """The address for the operator's SSH."""
        return self.ssh_host or self.private_ip


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Machines that Slurm starts for a job, and ends when they are idle. They have no fixed address: only the head and
    Slurm reach them, by their names. All are of one type, and the head is none of them."""

    name: HostName
    """Slurm's name of the partition."""
    nodes: Count
    """How many Slurm may start."""
    node_prefix: HostName
    """What a node's name begins with; a dash and a number from 1 follow."""
    slots: Count = 1
    """This and what follows is of each node, and means the same as in Node."""
    cores_per_slot: Count = 1
    gpus: Devices = 0
    gpu_architecture: GpuArchitecture = ""
    gpu_memory_gb: Amount = 0.0
    nvlink_gb_per_s: Amount = 0.0
    efa_cards: Devices = 0
    efa_gbps: Amount = 0.0
    memory_gb: Amount = 0.0
    hourly_usd: Amount = 0.0
    """Price of each node while it runs; the cluster's own `hourly_usd` is without the queue."""

    @property
    def node_names(self) -> tuple[str, ...]:
        """Slurm's names of the nodes."""
        return tuple(f"{self.node_prefix}-{number}" for number in range(1, self.nodes + 1))


@dataclass(frozen=True, kw_only=True)
class SshCluster:
    """Machines reached over SSH; the head is nodes[0]."""

    kind: ClassVar[str] = "ssh"

    name: ClusterName
    """The stack's name, or the name in a file written by hand."""
    nodes: tuple[Node, ...]
    launcher: Launcher = "mpirun"
    ssh_user: UserName = "trainyard"
    identity_file: LocalPath = ""
    """Private key on the operator's machine; empty: SSH agent and default keys."""
    jump_host: JumpHost = ""
    """`[user@]host[:port]`, SSH's jump host; empty: connect directly."""
    interface: Interface = ""
    """Network interface for the collectives; empty: the one with the route to the other nodes."""
    shared_dir: SharedPath = ""
    """Directory on storage that all nodes share; empty: none, each node has its own disk."""
    data_url: Bucket = ""
    """Bucket of the data set and the checkpoints (s3://, abfs://); empty: none."""
    hourly_usd: Amount = 0.0
    queue: Queue | None = None
    """With launcher `slurm`: machines on demand run the jobs, and `nodes` is the head alone. None: `nodes` run them."""

    @property
    def head(self) -> Node:
        """The first node, on which the jobs' run directories are."""
        return self.nodes[0]

    @property
    def job_node_usd(self) -> float:
        """US dollars an hour of each machine that runs jobs, while it runs."""
        return self.queue.hourly_usd if self.queue else self.hourly_usd / len(self.nodes)

    def node(self, name: str) -> Node:
        """The node of that name. Raises InventoryError, listing the names, if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise InventoryError(f"no node {name!r} in {self.name}; there are: {', '.join(n.name for n in self.nodes)}")


@dataclass(frozen=True, kw_only=True)
class KubeCluster:
    """A Kubernetes cluster. Jobs go through its API, not over SSH."""

    kind: ClassVar[str] = "kubernetes"

    name: ClusterName
    """The stack's name, or the name in a file written by hand."""
    cluster_name: ClusterName = ""
    """The name that its cloud knows it by; with authentication `kubeconfig`, of the context in your kubeconfig. Empty:
    the current context."""
    region: HostName = ""
    endpoint: Endpoint = ""
    """Its API server; empty: your kubeconfig has it. This and the next only with authentication `eks`."""
    certificate_authority: CertificateData = ""
    """The API server's own certificate authority, PEM as base64."""
    authentication: Authentication = "kubeconfig"
    """Who you are to the API: `kubeconfig`, as your kubeconfig says; `eks`, by your AWS credentials, with a token of
    `infra/clouds/aws/eks_token.py`."""
    kubeconfig: LocalPath = ""
    """A kubeconfig on the operator's machine, for this cluster alone; empty: yours."""
    namespace: HostName
    """Where the jobs are, with what they use: the service account and the claim."""
    service_account: HostName = ""
    """The pods' service account, whose rights reach the bucket; empty: the namespace's default."""
    image: Image
    """Container image of the training job, with tag or digest; without either, the repository that has them."""
    job_kind: JobKind = "PyTorchJob"
    """A TrainJob, of Kubeflow Trainer v2, is shown by a dry run, and not submitted."""
    workers: Count
    """Machines that run jobs; every field that follows is of each."""
    gpus_per_worker: Devices
    gpu_architecture: GpuArchitecture = ""
    gpu_memory_gb: Amount = 0.0
    nvlink_gb_per_s: Amount = 0.0
    efa_per_worker: Devices = 0
    efa_gbps: Amount = 0.0
    cores_per_worker: Annotated[int, Span(0, 1024)] = 0
    """Physical cores; 0: unknown."""
    memory_gb: Amount = 0.0
    shared_dir: SharedPath = ""
    """Where pods mount the storage that all share; empty: none."""
    shared_claim: HostName = ""
    """The persistent volume claim of that storage, in the namespace."""
    software: SharedPaths = ""
    """Folders of each machine that pods mount read-only at the same paths, as the image lacks what is in them; empty:
    the image has all."""
    data_url: Bucket = ""
    hourly_usd: Amount = 0.0
    control_groups: LocalPath = ""
    """Folder below /sys/fs/cgroup with a control group for each machine, by its name, if they run on the operator's
    machine: see Node.control_group. Empty: they run elsewhere, and only the API can tell."""


Cluster = SshCluster | KubeCluster


def to_json(cluster: Cluster) -> str:
    """The inventory as text, in stable order: an unchanged cluster has an unchanged output."""
    return json.dumps(to_object(cluster), indent=2)


_OF_GPUS = ("gpu_architecture", "gpu_memory_gb", "nvlink_gb_per_s", "efa_cards", "efa_gbps")
_OF_KUBERNETES = ("kubeconfig", "software", "control_groups", "job_kind", "gpu_memory_gb")


def to_object(cluster: Cluster) -> dict[str, Any]:
    """The inventory as a JSON object, to embed in another one."""
    fields = dataclasses.asdict(cluster)
    if fields.get("queue") is None:
        fields.pop("queue", None)
    parts = [(fields, _OF_KUBERNETES), (fields.get("queue", {}), ("gpu_memory_gb",))]
    for part, names in [*parts, *((node, _OF_GPUS) for node in fields.get("nodes", ()))]:
        for name in names:  # older versions, which may read this, do not know it
            if part.get(name) in ("", 0, "PyTorchJob"):
                del part[name]
    return {"schema": SCHEMA, "kind": cluster.kind, **fields}


def from_json(text: str, *, source: str = "inventory") -> Cluster:
    """Parse an inventory; `source` names it in errors.

    Raises InventoryError for invalid JSON, a newer schema, an unknown kind or key, a value of the wrong type or form,
    no nodes, two nodes with one name or address, or a head that is not first.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for numbers with thousands of digits
        raise InventoryError(f"{source}: not JSON: {error}") from None
    return from_object(raw, source=source)


def from_object(found: object, *, source: str = "inventory") -> Cluster:
    """Read an inventory from a JSON object; errors as in from_json."""
    if not isinstance(found, dict):
        raise InventoryError(f"{source}: must be a JSON object with schema, kind and nodes")
    raw = dict(found)
    schema, kind = raw.pop("schema", None), raw.pop("kind", None)
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise InventoryError(f"{source}: schema = {schema!r}: must be a whole number; this trainyard writes {SCHEMA}")
    if schema > SCHEMA:
        newest = f"schema {SCHEMA}, the newest that is read here"
        raise InventoryError(f"{source}: schema {schema} is newer than {newest}: update trainyard")
    if kind == SshCluster.kind:
        return _ssh_cluster(raw, source)
    if kind == KubeCluster.kind:
        return build(KubeCluster, raw, source)
    raise InventoryError(f"{source}: kind = {kind!r}: must be 'ssh' or 'kubernetes'")


def _ssh_cluster(raw: dict[str, Any], source: str) -> SshCluster:
    entries = raw.pop("nodes", None)
    if not isinstance(entries, list | tuple) or not entries:
        raise InventoryError(f"{source}: nodes: must be a list of at least one node")
    nodes = []
    for index, entry in enumerate(entries):
        where, role = f"{source}: nodes[{index}]", "worker" if index else "head"
        if not isinstance(entry, dict):
            raise InventoryError(f"{where}: must be an object with name and private_ip")
        node = build(Node, {"role": role, **entry}, where)
        if node.role != role:
            raise InventoryError(f"{where}: role = {node.role!r}: the first node is the head, the others are workers")
        nodes.append(node)
    for field in ("name", "private_ip"):
        values = [getattr(node, field) for node in nodes]
        if repeated := sorted({value for value in values if values.count(value) > 1}):
            raise InventoryError(f"{source}: nodes: {field} {repeated[0]!r} stands twice")
    if (queue := raw.get("queue")) is not None:
        if not isinstance(queue, dict):
            raise InventoryError(f"{source}: queue: must be an object with name, nodes and node_prefix")
        raw["queue"] = build(Queue, queue, f"{source}: queue")
    made = {"name": "machines", **raw, "nodes": tuple(nodes)}
    return build(SshCluster, made, source, checked=(tuple[Node, ...], Queue | None))
