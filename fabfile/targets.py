"""Load the cluster that a verb works on, from a stack's output or from an inventory file."""

from __future__ import annotations

from pathlib import Path

from invoke.exceptions import Exit

from fabfile.remote.known_hosts import directory
from fabfile.remote.openssh import CONFIG, renew
from infra.inventory import Cluster, InventoryError, Node, SshCluster, from_json


def load(stack: str, inventory: str) -> SshCluster:
    """The cluster of the inventory file if one is named, else of the stack. Exit 2 for an unusable inventory. Also
    rewrites the operator's SSH files of the cluster, if they exist."""
    cluster = parse(*_text(stack, inventory))
    renew(cluster)  # plain `ssh node2` must know the new key of a node that was made again
    return cluster


def load_any(stack: str, inventory: str) -> Cluster:
    """The same, also for a Kubernetes cluster."""
    text, source = _text(stack, inventory)
    cluster = parse_any(text, source)
    if isinstance(cluster, SshCluster):
        renew(cluster)
    return cluster


def _text(stack: str, inventory: str) -> tuple[str, str]:
    """(an inventory's JSON text, where it is from)."""
    if inventory:
        return _read(Path(inventory).expanduser()), inventory
    from fabfile.stacks import pulumi_cli  # imported only here: an inventory file needs no stack

    stack = stack or pulumi_cli.default_stack()
    return pulumi_cli.stack_output(stack), f"stack {stack}"


def parse(text: str, source: str) -> SshCluster:
    """The cluster of an inventory's JSON text. Exit 2, which names `source`, for one that cannot be used."""
    cluster = parse_any(text, source)
    if not isinstance(cluster, SshCluster):
        why = "it has no nodes for SSH: fab kubeconfig, then kubectl"
        raise Exit(f"{source}: kind = {cluster.kind!r}: {why}", code=2)
    return cluster


def parse_any(text: str, source: str) -> Cluster:
    """The same, also for a Kubernetes cluster."""
    try:
        cluster = from_json(text, source=source)
    except InventoryError as error:
        raise Exit(str(error), code=2) from None
    try:
        directory(cluster.name)
    except InventoryError as error:
        raise Exit(f"{source}: {error}", code=2) from None
    return cluster


def renew_files(stack: str) -> None:
    """After a change of the stack, rewrite the files that plain `ssh node2` reads, if the operator has them."""
    if any((directory(stack) / name).exists() for name in ("known_hosts", CONFIG)):
        load_any(stack, "")


def choose(cluster: SshCluster, names: str) -> list[Node]:
    """The nodes of a comma-separated list, each once; an empty list means all. Exit 2 for an unknown name."""
    try:
        wanted = [cluster.node(name.strip()) for name in names.split(",")] if names else list(cluster.nodes)
    except InventoryError as error:
        raise Exit(str(error), code=2) from None
    return list(dict.fromkeys(wanted))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Exit(f"{path}: {error.strerror}", code=2) from None
    except UnicodeDecodeError:
        raise Exit(f"{path}: not JSON: not even text", code=2) from None
