"""A node of a local cluster: a machine booted from the golden image, at a fixed address."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.local import bake, cgroup, image, paths, rootfs, system_command
from infra.clouds.local.kubernetes import node as kubernetes_node
from infra.clouds.local.nspawn import NspawnMachine
from infra.clouds.local.slurm import node as slurm_node
from infra.errors import OperationError
from infra.state import operation

HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
FIXED = ("stack", "name", "address", "bridge", "image", "user_data", "scheduler")
"""Inputs that cannot change on a running node: another value replaces it. A node without a scheduler has none."""
LIMITS = ("cpus", "memory_mb")


def machine(stack: str, name: str) -> NspawnMachine:
    """The machine of a node, whether or not it is there."""
    return NspawnMachine(stack, name, paths.node(stack, name))


class NodeProvider(PlainProvider):
    """Create adopts an identical running node that a killed `up` has left, and never touches a different one."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Returns once the machine's init runs. OperationError if it does not boot, and then nothing of it is left, or
        if a node with other settings runs in its place; LockBusy while another operation has it."""
        node = machine(props["stack"], props["name"])
        paths.close()
        with operation.lock(paths.stack(node.stack)), operation.lock(node.directory, exclusive=True):
            if not _adopt(node, props):
                _boot(node, props)
            _limit(node, props)
            outs = {**props, "host_key": _host_key(node), "console": str(node.console), "alive": True}
        return CreateResult(id_=node.unique_name, outs=outs)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """A change of FIXED, or a dead machine, replaces the node, the old one first. New LIMITS it gets as it runs."""
        replaces = [key for key in FIXED if olds.get(key) != news.get(key)]
        # Checked here too, not only by a refresh: a plain `pulumi up` or preview must not report "no changes".
        if not olds["alive"] or not machine(olds["stack"], olds["name"]).is_alive():
            replaces.append("alive")
        changes = replaces + [key for key in LIMITS if olds.get(key) != news[key]]
        return DiffResult(changes=bool(changes), replaces=replaces, delete_before_replace=True)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """A dead node stays in the state, so that its remains count as known; `up` makes it again."""
        node = machine(props["stack"], props["name"])
        if not node.is_there():
            return ReadResult(id_="", outs={})
        return ReadResult(id_=id_, outs={**props, "alive": node.is_alive()})

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Give the running node its new LIMITS: processors, and MiB of memory."""
        node = machine(news["stack"], news["name"])
        with operation.lock(paths.stack(node.stack)), operation.lock(node.directory, exclusive=True):
            _limit(node, news)
        return UpdateResult(outs={**olds, **{key: news[key] for key in LIMITS}})

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """End the machine and remove its disk, then the stack's folder if it is empty. A missing node is no error."""
        node = machine(props["stack"], props["name"])
        with operation.lock(paths.stack(node.stack)), operation.lock(node.directory, exclusive=True):
            node.remove()
        paths.tidy(node.stack)


def _fixed(props: dict[str, Any]) -> dict[str, Any]:
    return {key: props[key] for key in FIXED if key in props}


def _limit(node: NspawnMachine, props: dict[str, Any]) -> None:
    cgroup.limit(node.stack, node.name, cpus=int(props["cpus"]), memory_mb=int(props["memory_mb"]))


def _adopt(node: NspawnMachine, props: dict[str, Any]) -> bool:
    """Whether the wanted node already runs. Raises OperationError if a live one differs from it."""
    if not node.is_alive():
        return False
    known = json.loads(node.spec.read_text()) if node.spec.exists() else None
    if known != _fixed(props):
        raise OperationError(
            f"{node.name} of stack {node.stack} runs with other settings and is not in the state; run: fab recover"
        )
    return True


def _boot(node: NspawnMachine, props: dict[str, Any]) -> None:
    """Boot a new node; on failure remove everything of it."""
    node.clear()
    try:
        node.mount(image.layers(props["image"]))
        _personalise(node, props)
        # Written before the boot, so that a live machine always has it.
        node.spec.write_text(json.dumps(_fixed(props)))
        names = [f"--network-bridge={props['bridge']}", f"--hostname={node.name}"]
        options = [*names, "--resolv-conf=off", "--timezone=off", *_prepare(node, props)]
        containers = props.get("scheduler") == "kubernetes"
        node.start(options, cpus=int(props["cpus"]), memory_mb=int(props["memory_mb"]), containers=containers)
    except BaseException:
        node.clear()
        raise


def _prepare(node: NspawnMachine, props: dict[str, Any]) -> list[str]:
    """Give a node what its scheduler needs; returns systemd-nspawn's options for it."""
    match props.get("scheduler"):
        case "slurm":
            return slurm_node.prepare(node)
        case "kubernetes":
            return kubernetes_node.prepare(node, props["address"])
    return []


def _personalise(node: NspawnMachine, props: dict[str, Any]) -> None:
    """Write what a cloud gives a machine before its boot: its identity, its address and its cloud-init seed.

    The host key is made here, so that the host knows the public half without asking the node over the network. The
    private half is written only to the node's own disk.
    """
    root, name = node.root, node.name
    rootfs.write(root, "etc/machine-id", uuid.uuid4().hex + "\n")
    rootfs.write(root, "etc/hostname", name + "\n")
    network = f"[Match]\nName=host0\n[Network]\nAddress={props['address']}\nLinkLocalAddressing=no\n"
    # The name sorts before the distribution's 80-container-host0.network, which uses DHCP.
    rootfs.write(root, "etc/systemd/network/10-trainyard.network", network)
    key, public = node.directory / "host_key", node.directory / "host_key.pub"
    system_command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)])
    rootfs.write(root, HOST_KEY, key.read_text(), mode=0o600)
    rootfs.write(root, f"{HOST_KEY}.pub", public.read_text())
    key.unlink()
    bake.seed(root, props["user_data"], instance=f"{name}-{time.time_ns()}", name=name)


def _host_key(node: NspawnMachine) -> str:
    """The public host key, `TYPE BASE64`, from our own copy, as the node's root may have changed the node's."""
    return " ".join((node.directory / "host_key.pub").read_text().split()[:2])


class Node(Resource, module="local", name="Node"):
    """A booted machine. It counts as made once its init runs; `fab wait` waits until it is ready."""

    host_key: pulumi.Output[str]
    console: pulumi.Output[str]

    def __init__(self, resource_name: str, opts: pulumi.ResourceOptions, **inputs: pulumi.Input[str | int]) -> None:
        """`inputs`: FIXED (`scheduler` only with one) and LIMITS; `address` is such as 10.77.0.10/24."""
        outputs = {"host_key": None, "console": None}
        super().__init__(NodeProvider(), resource_name, {**inputs, **outputs}, opts)
