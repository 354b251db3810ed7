"""The local cluster: a bridge, the golden image, and N machines booted from it."""

from __future__ import annotations

import pulumi

from infra import cloud_config, inventory, user_data
from infra.clouds import naming
from infra.clouds.local import bake, base_image, cgroup, host, owner
from infra.clouds.local.image import Image
from infra.clouds.local.network import Network
from infra.clouds.local.nodes import Node
from infra.clouds.local.slurm import folder
from infra.clusters import local_scheduler, members
from infra.config.settings import Settings
from infra.prices import table
from infra.state import stack_id


def image_id(settings: Settings) -> str:
    """The image for the nodes: the given one, or the one that the current bootstrap makes."""
    if settings.image != "bake":
        return settings.image
    # The list of sealed files is part of the key: an image that was sealed less thoroughly must not be used again.
    return user_data.image_key(settings, base_image.key(), *bake.SEALED)


def check(settings: Settings) -> None:
    """Raise UsageError if this machine cannot run the cluster. Changes nothing."""
    host.check_machine()
    cloud_config.read(user_data.BOOTSTRAP)
    image = image_id(settings)
    host.check(settings, image)
    local_scheduler.check(settings, image)


def bill(settings: Settings) -> list[table.PriceLine]:
    """Empty: local machines cost nothing."""
    return []


def build(settings: Settings) -> pulumi.Output[str]:
    """Declare the cluster; returns its inventory. Raises UsageError if another user here has the stack's name."""
    check(settings)
    if settings.stack_id:
        owner.check(settings.stack, [settings.stack_id])
    image = image_id(settings)
    stack, local = settings.stack, settings.local
    named = stack_id.declare(settings)
    network = Network("network", stack=stack, cidr=str(settings.cidr), opts=named)
    golden = Image(
        "image",
        stack=stack,
        image=image,
        user_data=user_data.for_bake(settings, image) if settings.image == "bake" else "",
        opts=named,
    )
    booted, needs = local_scheduler.declare(settings, image, golden, named)
    # A node without a scheduler has no such input, as before there were any.
    scheduler = {} if local.scheduler == "none" else {"scheduler": local.scheduler}
    nodes = []
    for index in range(settings.nodes):
        name = naming.node(index)
        node = Node(
            name,
            # As the provider says, too; `pulumi up --replace` does not ask it.
            pulumi.ResourceOptions(depends_on=needs, delete_before_replace=True),
            stack=stack,
            name=name,
            address=f"{settings.address(index)}/{settings.cidr.prefixlen}",
            bridge=network.bridge,
            image=booted,
            user_data=user_data.for_node(settings, image, name, naming.role(index), baked=True),
            cpus=local.cpus,
            memory_mb=local.memory_mb,
            **scheduler,
        )
        nodes.append(node)
    if local.scheduler == local_scheduler.KUBERNETES:
        return local_scheduler.of_kubernetes(settings, nodes)
    facts = [pulumi.Output.all(node.host_key, node.console) for node in nodes]
    return pulumi.Output.all(*facts).apply(lambda known: _inventory(settings, known))


def _inventory(settings: Settings, facts: list[list[str]]) -> str:
    """The inventory as JSON, from each node's [host_key, console]."""
    each = []
    for index, (host_key, console) in enumerate(facts):
        group = str(cgroup.unified(settings.stack, naming.node(index)))
        own = {"private_ip": settings.address(index), "host_key": host_key}
        each.append({**own, "console": console, "control_group": group})
    with_slurm = settings.local.scheduler == local_scheduler.SLURM
    cluster = inventory.SshCluster(
        name=settings.stack,
        nodes=members.of(host.machine(settings), each),
        identity_file=str(settings.identity_file or ""),
        interface="host0",
        launcher="slurm" if with_slurm else "mpirun",
        shared_dir=folder.SHARED if with_slurm else "",
    )
    return inventory.to_json(cluster)
