"""Which machines a verb works on: a stack's inventory, or a file's."""

from __future__ import annotations

from pathlib import Path

from invoke.exceptions import Exit

from fabfile.remote.known_hosts import directory
from fabfile.remote.openssh import CONFIG, renew
from infra.inventory import InventoryError, Node, SshCluster, from_json


def load(stack: str, inventory: str) -> SshCluster:
    """The cluster in the inventory file, else that of the stack; what cannot be used ends fab with exit code 2."""
    text, source = (_read(Path(inventory).expanduser()), inventory) if inventory else _stack_output(stack)
    cluster = parse(text, source)
    renew(cluster)  # a node that was made again has a new key: plain `ssh node2` is to know it as well
    return cluster


def parse(text: str, source: str) -> SshCluster:
    """The cluster of an inventory that is in hand; what cannot be used ends fab with exit code 2, naming `source`."""
    try:
        cluster = from_json(text, source=source)
        if not isinstance(cluster, SshCluster):
            raise InventoryError(f"{source}: kind = {cluster.kind!r}: this verb works on nodes reached over SSH")
    except InventoryError as error:
        raise Exit(str(error), code=2) from None
    try:
        directory(cluster.name)
    except InventoryError as error:
        raise Exit(f"{source}: {error}", code=2) from None
    return cluster


def renew_files(stack: str) -> None:
    """After a change of the stack: what plain `ssh node2` reads is made to fit, where the operator has it."""
    if any((directory(stack) / name).exists() for name in ("known_hosts", CONFIG)):
        load(stack, "")


def choose(cluster: SshCluster, names: str) -> list[Node]:
    """The nodes of a comma-separated list; empty: all of them."""
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


def _stack_output(stack: str) -> tuple[str, str]:
    from fabfile.stacks import pulumi_cli  # only here: with an inventory file no stack is needed, nor what makes one

    stack = stack or pulumi_cli.default_stack()
    return pulumi_cli.stack_output(stack), f"stack {stack}"
