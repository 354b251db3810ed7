"""The nodes: N machines of the golden image, placed close together, each with a fixed address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_azure_native import compute

from infra import user_data
from infra.clouds import naming
from infra.clouds.azure import machine_types, vm
from infra.clouds.azure.access import Access
from infra.clouds.azure.image import Golden, script
from infra.clouds.azure.names import Base
from infra.clouds.azure.network import Network, address
from infra.clouds.azure.run_command import Command


@dataclass(frozen=True)
class Node:
    """What the inventory needs of a node."""

    name: str
    role: naming.Role
    private_ip: str
    host_key: pulumi.Output[str]
    public_ip: pulumi.Output[str | None] | None


def declare(base: Base, net: Network, golden: Golden, own: Access) -> list[Node]:
    """Declare all nodes, the head first."""
    group = compute.ProximityPlacementGroup(
        "placement",
        proximity_placement_group_name=base.name("placement"),
        proximity_placement_group_type="Standard",
        **base.common(),
    )
    return [_node(base, net, golden, own, group, index) for index in range(base.settings.nodes)]


def _node(
    base: Base, net: Network, golden: Golden, own: Access, group: compute.ProximityPlacementGroup, index: int
) -> Node:
    settings, size = base.settings, machine_types.of(base.settings)
    host, role = naming.node(index), naming.role(index)
    is_public = index == 0 or settings.cloud.public_nodes == "all"
    public = address(base, f"{host}-address") if is_public else None
    spec = vm.Spec(
        logical=host,
        hostname=host,
        size=size.name,
        nvme=size.modern,
        image=compute.ImageReferenceArgs(id=golden.id),
        storage=size.storage,
        disk_gb=settings.cloud.disk_gb,
        user_data=user_data.packed(user_data.for_node(settings, golden.key, host, role, baked=True)),
        address=settings.address(index),
        public=public,
        spot=settings.cloud.spot,
        one_thread=size.modern,
        near=group,
    )
    node = vm.declare(base, spec, net.subnet, own, *golden.made, **_options(base))
    # Read through the Azure agent, so that the first SSH connection can already check the host key.
    host_key = Command(
        f"{host}-key",
        pulumi.ResourceOptions(custom_timeouts=pulumi.CustomTimeouts(create="30m")),
        name="host-key",
        machine=node.id,
        incarnation=node.vm_id,
        location=base.location,
        script=script("host_key.sh"),
        seconds=360,
        wanted="ssh-ed25519 [A-Za-z0-9+/=]+",
        builder=False,
    ).output
    return Node(host, role, spec.address, host_key, public.ip_address if public else None)


def _options(base: Base) -> dict[str, Any]:
    """A node keeps its image and user data until replacement is asked for (replaceNodes).

    A change that Azure cannot make on a machine replaces it in any case. The old machine is deleted first, because its
    network interface, which has the address, can be attached to one machine only.
    """
    own = ["osProfile", "storageProfile.imageReference"]
    # Only the fields that the program changes: Azure adds defaults beside them, which a refresh would show as changes.
    changing = ["osProfile.customData", "osProfile.linuxConfiguration.ssh", "storageProfile.imageReference.id"]
    replace = base.settings.cloud.replace_nodes
    return {
        "ignore_changes": None if replace else own,
        "replace_on_changes": ["priority", "zones", *(changing if replace else [])],
        "delete_before_replace": True,
        "custom_timeouts": pulumi.CustomTimeouts(create="30m", update="30m", delete="30m"),
    }
