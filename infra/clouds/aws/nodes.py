"""The nodes: one launch template for all, and N instances at fixed addresses.

The template has what all nodes share (type, disk, placement, Spot); an instance has its own address, image and user
data. So a new image or bootstrap changes neither the template nor the running nodes. With EFA each node has a template
of its own: EC2 takes the kind of an interface only together with its address, and Pulumi's instance takes no kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import user_data
from infra.clouds import naming
from infra.clouds.aws import capacity, interfaces, machine_types
from infra.clouds.aws.foundation import Ground
from infra.clouds.aws.host_key import HostKey
from infra.clouds.aws.image import Golden
from infra.clouds.aws.names import named, region, titled
from infra.clouds.aws.network import address, is_public
from infra.clouds.aws.zones import zone
from infra.clouds.naming import STACK_TAG, identity, tags
from infra.config.settings import Settings
from infra.errors import UsageError

USER_DATA_BYTES = 16 * 1024
"""EC2's limit on user data, before base64."""
ROOT = "/dev/sda1"
"""The root device of Ubuntu's images and of those baked from them."""
KEPT = ["ami", "user_data_base64", "capacity_reservation_specification"]
"""Changes that do not replace a running node, unless replaceNodes is set."""


@dataclass(frozen=True)
class Node:
    """What the inventory needs of a node."""

    instance: aws.ec2.Instance
    public_ip: pulumi.Output[str]
    """Empty for a node behind the NAT gateway."""
    host_key: pulumi.Output[str]


def check_user_data(text: str, what: str) -> str:
    """The user data in base64, as EC2 takes it. Raises UsageError if it is too large."""
    packed = user_data.packed(text)
    size = len(packed) * 3 // 4 - packed.count("=")
    if size > USER_DATA_BYTES:
        limit = f"AWS takes {USER_DATA_BYTES}: bootstrap/ is too large"
        raise UsageError(f"user data of {what}: {size} bytes, compressed, and {limit}")
    return packed


def declare(settings: Settings, golden: Golden, ground: Ground, given: capacity.Given | None) -> list[Node]:
    """Declare all nodes, the head first. `given`: the user's own capacity reservation for them."""
    machine, where = machine_types.of(settings).name, zone(settings)
    opts = pulumi.ResourceOptions(provider=ground.provider)
    first, name = list(ground.first), pulumi.Output.from_input(given.group if given else "")
    reserved = None
    if given is None:
        # Close together in the zone, for fast collectives.
        cluster = aws.ec2.PlacementStrategy.CLUSTER
        group = aws.ec2.PlacementGroup("together", name=named(settings), strategy=cluster, opts=opts)
        name = group.name
        if capacity.wanted(settings):
            # Reserve last of all: a reservation costs as much as the nodes.
            after = pulumi.ResourceOptions(depends_on=ground.first)
            reserved = capacity.Reserved(
                settings, {"type": machine, "zone": where, "group": group.arn, "image": golden.ami}, after
            )
            first.append(reserved)
    placing = _Placing(None if given and not given.group else name, bool(given and given.block))
    inside = None
    if given is not None:
        target = aws.ec2.InstanceCapacityReservationSpecificationCapacityReservationTargetArgs(
            capacity_reservation_id=given.id
        )
        inside = aws.ec2.InstanceCapacityReservationSpecificationArgs(capacity_reservation_target=target)
    shared = None if machine_types.of(settings).efa_cards else _template(settings, ground, placing)
    made = []
    for index in range(settings.nodes):
        template = shared or _template(settings, ground, placing, index)
        made.append(_node(settings, index, golden, template, ground, first, inside))
    if reserved is not None:
        done = pulumi.ResourceOptions(depends_on=[node.instance for node in made])
        capacity.Released(region(settings), reservation=reserved.reservation, opts=done)
    return made


@dataclass(frozen=True)
class _Placing:
    """Where EC2 is to start the nodes."""

    group: pulumi.Output[str] | None
    """The placement group."""
    block: bool
    """Whether they are put into a Capacity Block."""


def _market(settings: Settings, placing: _Placing) -> aws.ec2.LaunchTemplateInstanceMarketOptionsArgs | None:
    """How the nodes are bought; None: on demand."""
    if placing.block:
        return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block")
    if not settings.cloud.spot:
        return None
    # No maximum price: the default is the on-demand price, and a lower one only causes more interruptions.
    options = aws.ec2.LaunchTemplateInstanceMarketOptionsSpotOptionsArgs
    once = options(spot_instance_type="one-time", instance_interruption_behavior="terminate")
    return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="spot", spot_options=once)


def _template(
    settings: Settings, ground: Ground, placing: _Placing, index: int | None = None
) -> aws.ec2.LaunchTemplate:
    """`index`: that of its one node, if the node's interfaces are in it."""
    machine = machine_types.of(settings)
    disk = aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
        volume_type="gp3",
        volume_size=settings.cloud.disk_gb,
        encrypted="true",  # a launch template wants a string
        delete_on_termination="true",
    )
    # One thread per core: a second one does not speed up matrix products. EC2 requires both numbers.
    single = aws.ec2.LaunchTemplateCpuOptionsArgs(core_count=machine.cores, threads_per_core=1)
    called = "" if index is None else naming.node(index)
    # Only tags that never change: a new template version would replace the nodes.
    fixed = {STACK_TAG: settings.stack, **identity(settings)}
    return aws.ec2.LaunchTemplate(
        f"template-{called}" if called else "template",
        name=named(settings, called),
        description=f"Nodes of the Trainyard stack {settings.stack}",
        update_default_version=True,
        instance_type=machine.name,
        cpu_options=single if machine.cpu_options else None,
        placement=None if placing.group is None else aws.ec2.LaunchTemplatePlacementArgs(group_name=placing.group),
        network_interfaces=None if index is None else interfaces.of(settings, index, ground),
        iam_instance_profile=aws.ec2.LaunchTemplateIamInstanceProfileArgs(name=ground.access.profile),
        key_name=ground.access.key,
        metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
        ),
        block_device_mappings=[aws.ec2.LaunchTemplateBlockDeviceMappingArgs(device_name=ROOT, ebs=disk)],
        # A node that shuts itself down (maxHours, idleMinutes) is then no longer billed.
        instance_initiated_shutdown_behavior="terminate",
        instance_market_options=_market(settings, placing),
        tag_specifications=[
            aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=fixed)
            for kind in ("network-interface", *(["spot-instances-request"] if settings.cloud.spot else []))
        ],
        opts=pulumi.ResourceOptions(provider=ground.provider),
    )


def _node(
    settings: Settings,
    index: int,
    golden: Golden,
    template: aws.ec2.LaunchTemplate,
    ground: Ground,
    first: list[pulumi.Resource],
    inside: aws.ec2.InstanceCapacityReservationSpecificationArgs | None,
) -> Node:
    """`first`: what must exist before the node. `inside`: the reservation to launch into."""
    called = naming.node(index)
    facts = machine_types.for_nodes(machine_types.of(settings))
    text = user_data.for_node(settings, golden.key, called, naming.role(index), baked=True, machine=facts)
    opts = pulumi.ResourceOptions(provider=ground.provider)
    instance = aws.ec2.Instance(
        called,
        launch_template=aws.ec2.InstanceLaunchTemplateArgs(id=template.id, version=template.latest_version.apply(str)),
        ami=golden.ami,
        user_data_base64=check_user_data(text, called),
        user_data_replace_on_change=True,  # a running node does not read it again
        **_attached(settings, index, ground),
        capacity_reservation_specification=inside,
        tags=titled(settings, called),
        volume_tags={**tags(settings), **titled(settings, called)},
        opts=pulumi.ResourceOptions.merge(
            opts,
            pulumi.ResourceOptions(
                depends_on=first,
                ignore_changes=None if settings.cloud.replace_nodes else KEPT,
                # EC2 can change it only on a stopped machine.
                replace_on_changes=["capacity_reservation_specification"],
                delete_before_replace=True,  # the new node needs the same address
                custom_timeouts=pulumi.CustomTimeouts(create="15m", delete="20m"),
            ),
        ),
    )
    own = interfaces.public_address(settings, index, called, instance, opts)
    # Systems Manager reads the key: on a public node with several interfaces only once the node has its address.
    key = HostKey(called, region=region(settings), instance=instance.id, after=own)
    return Node(instance, instance.public_ip if own is None else own.public_ip, key.host_key)


def _attached(settings: Settings, index: int, ground: Ground) -> dict[str, Any]:
    """A node's place in the network, if its template does not say it."""
    if machine_types.of(settings).efa_cards:
        return {}
    public = is_public(settings, index)
    subnet = ground.network.public if public else ground.network.private
    assert subnet is not None  # a private subnet exists whenever a node is not public
    return {
        "subnet_id": subnet.id,
        "private_ip": address(settings, index),
        "associate_public_ip_address": public,
        # Not in the template, where they would conflict with the template's own network interface.
        "vpc_security_group_ids": [ground.security.nodes.id],
    }
