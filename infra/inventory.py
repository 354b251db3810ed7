"""The contract between provisioning and running: what `pulumi stack output inventory` says.

    Pulumi program  ->  Inventory.to_json()  ->  stack output (or a hand-written file)
    Fabric tasks    <-  Inventory.from_json()

Everything a task needs to reach and to use a cluster is here; secrets never are. The head node comes
first. A file written by hand is as good as a stack's: only `schema`, `kind` and, per node, `name` and
`private_ip` are needed, the rest has defaults.

This module imports nothing but the standard library, so that a task needs no Pulumi to run.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_type_hints

SCHEMA = 1
"""The version of the contract that this code writes, and the newest that it reads."""

Launcher = Literal["mpirun", "slurm"]
Role = Literal["head", "worker"]

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class InventoryError(ValueError):
    """An inventory that cannot be used: one line that says where and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine of a cluster that is reached over SSH."""

    name: str
    """Host name, as the other nodes and `ssh <name>` know it."""
    private_ip: str
    """Address on the cluster's own network."""
    role: Role = "worker"
    ssh_host: str = ""
    """Address to reach its sshd at (through the jump host, where there is one); default: private_ip."""
    ssh_port: int = 22
    slots: int = 1
    """Ranks that this node takes: one per NUMA node or per GPU."""
    cores_per_slot: int = 1
    """Physical cores that a rank may use."""
    gpus: int = 0
    memory_gb: float = 0.0
    """Memory in GiB; 0: not known."""
    host_key: str = ""
    """Public SSH host key, `ssh-ed25519 AAAA...`; empty: the operator's own known_hosts decides."""
    console: str = ""
    """File on the operator's machine with the node's console output; empty: there is none."""

    @property
    def address(self) -> str:
        """Where the operator's SSH connects to."""
        return self.ssh_host or self.private_ip


@dataclass(frozen=True, kw_only=True)
class SshCluster:
    """Machines that are reached over SSH; the head is nodes[0]."""

    kind: ClassVar[str] = "ssh"

    name: str
    """The stack's name, or what the writer of the file calls these machines."""
    nodes: tuple[Node, ...]
    launcher: Launcher = "mpirun"
    ssh_user: str = "trainyard"
    identity_file: str = ""
    """Private key on the operator's machine; empty: the SSH agent and the default keys."""
    jump_host: str = ""
    """`[user@]host[:port]` that SSH goes through; empty: directly."""
    interface: str = ""
    """Network interface for the collectives; empty: that of the route to the other nodes."""
    shared_dir: str = ""
    """Directory that all nodes share; empty: none, each has its own disk."""
    data_url: str = ""
    """Where the data set and the checkpoints are kept beside the nodes (s3://, abfs://); empty: nowhere."""
    hourly_usd: float = 0.0

    @property
    def head(self) -> Node:
        return self.nodes[0]

    def node(self, name: str) -> Node:
        """The node of that name; InventoryError names the ones there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise InventoryError(f"no node {name!r} in {self.name}; there are: {', '.join(n.name for n in self.nodes)}")


@dataclass(frozen=True, kw_only=True)
class KubeCluster:
    """A Kubernetes cluster; jobs go through its API, not through SSH."""

    kind: ClassVar[str] = "kubernetes"

    name: str
    region: str
    namespace: str
    image: str
    """Container image of the training job, with its digest or tag."""
    workers: int
    gpus_per_worker: int
    efa_per_worker: int = 0
    data_url: str = ""
    hourly_usd: float = 0.0


Cluster = SshCluster | KubeCluster
T = TypeVar("T")


def to_json(cluster: Cluster) -> str:
    """The inventory as text: stable order, so that an unchanged cluster has an unchanged output."""
    body = dataclasses.asdict(cluster)
    return json.dumps({"schema": SCHEMA, "kind": cluster.kind, **body}, indent=2)


def from_json(text: str, *, source: str = "inventory") -> Cluster:
    """Read an inventory; `source` names it in errors.

    Raises InventoryError for text that is not JSON, a newer schema, an unknown kind or key, a value of
    the wrong type, no nodes, two nodes of one name or address, or a head that is not first.
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise InventoryError(f"{source}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InventoryError(f"{source}: must be a JSON object with schema, kind and nodes")
    _check_schema(raw.pop("schema", None), source)
    kind = raw.pop("kind", None)
    if kind == SshCluster.kind:
        return _ssh_cluster(raw, source)
    if kind == KubeCluster.kind:
        return _build(KubeCluster, raw, source)
    raise InventoryError(f"{source}: kind = {kind!r}: must be 'ssh' or 'kubernetes'")


def _check_schema(schema: object, source: str) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise InventoryError(f"{source}: schema = {schema!r}: must be a whole number; this trainyard writes {SCHEMA}")
    if schema > SCHEMA:
        raise InventoryError(
            f"{source}: schema {schema} is newer than schema {SCHEMA}, the newest that is read here: update trainyard"
        )


def _ssh_cluster(raw: dict[str, Any], source: str) -> SshCluster:
    entries = raw.pop("nodes", None)
    if not isinstance(entries, list) or not entries:
        raise InventoryError(f"{source}: nodes: must be a list of at least one node")
    nodes = []
    for index, entry in enumerate(entries):
        where = f"{source}: nodes[{index}]"
        if not isinstance(entry, dict):
            raise InventoryError(f"{where}: must be an object with name and private_ip")
        entry = {"role": "head" if index == 0 else "worker", **entry}
        nodes.append(_check_node(_build(Node, entry, where), where, first=index == 0))
    for field in ("name", "private_ip"):
        values = [getattr(node, field) for node in nodes]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise InventoryError(f"{source}: nodes: {field} {twice[0]!r} stands twice")
    cluster = _build(SshCluster, {"name": "machines", **raw, "nodes": tuple(nodes)}, source)
    if cluster.launcher not in ("mpirun", "slurm"):
        raise InventoryError(f"{source}: launcher = {cluster.launcher!r}: must be 'mpirun' or 'slurm'")
    return cluster


def _check_node(node: Node, where: str, *, first: bool) -> Node:
    if not _HOST_NAME.fullmatch(node.name):
        raise InventoryError(f"{where}: name = {node.name!r}: must be a host name (a-z, 0-9 and '-')")
    try:
        ipaddress.ip_address(node.private_ip)
    except ValueError:
        raise InventoryError(f"{where}: private_ip = {node.private_ip!r}: must be an IP address") from None
    if node.role != ("head" if first else "worker"):
        raise InventoryError(f"{where}: role = {node.role!r}: the first node is the head, the others are workers")
    for key, least, most in (("ssh_port", 1, 65535), ("slots", 1, 1024), ("cores_per_slot", 1, 1024), ("gpus", 0, 64)):
        if not least <= getattr(node, key) <= most:
            raise InventoryError(f"{where}: {key} = {getattr(node, key)}: must be from {least} to {most}")
    if node.host_key and not re.fullmatch(r"(ssh|ecdsa)-[a-z0-9-]+ [A-Za-z0-9+/=]+", node.host_key):
        raise InventoryError(f"{where}: host_key: must be 'TYPE BASE64', the public half of a host key")
    return node


def _build(cls: type[T], raw: Mapping[str, Any], where: str) -> T:
    """Make a dataclass from a JSON object, with every key and type checked by name."""
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key, value in raw.items():
        if key not in fields:
            raise InventoryError(f"{where}: unknown key {key!r}; known: {', '.join(fields)}")
        _check_type(key, value, hints[key], where)
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in raw]
    if missing:
        raise InventoryError(f"{where}: {missing[0]} is missing")
    return cls(**raw)


def _check_type(key: str, value: object, hint: object, where: str) -> None:
    simple = {str: "text", int: "a whole number", float: "a number"}
    if hint not in simple:
        return  # Literals and the tuple of nodes are checked where their meaning is
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return
    if not isinstance(value, hint) or isinstance(value, bool):
        raise InventoryError(f"{where}: {key} = {value!r}: must be {simple[hint]}")
