"""The nodes: one launch template for all, and N instances at fixed addresses.

The template has what makes the machine (type, disk, placement, Spot); the instance has what makes it this node
(address, image, user data). A new image or bootstrap therefore leaves the template, and the nodes that run, as they
are.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import user_data
from infra.clouds import naming
from infra.clouds.aws import capacity, machine_types
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
"""What EC2 takes, before base64."""
ROOT = "/dev/sda1"
"""The root device of Ubuntu's images, and of what is baked from them."""
KEPT = ["ami", "user_data_base64", "capacity_reservation_specification"]
"""Of a node that runs, unless replaceNodes says otherwise."""


@dataclass(frozen=True)
class Node:
    """What the inventory has to know of a node once it is there."""

    instance: aws.ec2.Instance
    public_ip: pulumi.Output[str]
    host_key: pulumi.Output[str]


def check_user_data(text: str, what: str) -> str:
    """The user data as EC2 takes it. Raises UsageError for one that is too large."""
    packed = user_data.packed(text)
    size = len(packed) * 3 // 4 - packed.count("=")
    if size > USER_DATA_BYTES:
        raise UsageError(
            f"user data of {what}: {size} bytes, compressed, and AWS takes {USER_DATA_BYTES}: bootstrap/ is too large"
        )
    return packed


def declare(settings: Settings, golden: Golden, ground: Ground, given: capacity.Given | None) -> list[Node]:
    """Declare all of them, the head first. `given`: the user's own reservation that they are put into."""
    machine, where = machine_types.of(settings).name, zone(settings)
    opts = pulumi.ResourceOptions(provider=ground.provider)
    first, name = list(ground.first), pulumi.Output.from_input(given.group if given else "")
    reserved = None
    if given is None:
        # Near each other in the one zone, for the sake of the collectives.
        cluster = aws.ec2.PlacementStrategy.CLUSTER
        group = aws.ec2.PlacementGroup("together", name=named(settings), strategy=cluster, opts=opts)
        name = group.name
        if capacity.wanted(settings):
            # Last of all that a node needs: while it stands it costs as much as the nodes.
            after = pulumi.ResourceOptions(depends_on=ground.first)
            reserved = capacity.Reserved(settings, machine, where, group=group.arn, image=golden.ami, opts=after)
            first.append(reserved)
    template = _template(settings, ground, None if given and not given.group else name)
    inside = given.id if given else ""
    made = [_node(settings, index, golden, template, ground, first, inside) for index in range(settings.nodes)]
    if reserved is not None:
        done = pulumi.ResourceOptions(depends_on=[node.instance for node in made])
        capacity.Released(region(settings), reservation=reserved.reservation, opts=done)
    return made


def _template(settings: Settings, ground: Ground, group: pulumi.Output[str] | None) -> aws.ec2.LaunchTemplate:
    opts = pulumi.ResourceOptions(provider=ground.provider)
    machine = machine_types.of(settings)
    return aws.ec2.LaunchTemplate(
        "template",
        name=named(settings),
        description=f"Nodes of the Trainyard stack {settings.stack}",
        update_default_version=True,
        instance_type=machine.name,
        # One thread per core: a matrix product gains nothing from a second one. EC2 wants both numbers.
        cpu_options=aws.ec2.LaunchTemplateCpuOptionsArgs(core_count=machine.cores, threads_per_core=1),
        placement=None if group is None else aws.ec2.LaunchTemplatePlacementArgs(group_name=group),
        iam_instance_profile=aws.ec2.LaunchTemplateIamInstanceProfileArgs(name=ground.access.profile),
        key_name=ground.access.key,
        metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
        ),
        block_device_mappings=[
            aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                device_name=ROOT,
                ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                    volume_type="gp3",
                    volume_size=settings.cloud.disk_gb,
                    encrypted="true",  # text, in a template
                    delete_on_termination="true",
                ),
            )
        ],
        # What ends a node from inside (maxHours, idleMinutes) ends its cost.
        instance_initiated_shutdown_behavior="terminate",
        instance_market_options=_spot() if settings.cloud.spot else None,
        # Only the tags that never change: another version of the template is another machine.
        tag_specifications=[
            aws.ec2.LaunchTemplateTagSpecificationArgs(
                resource_type=kind, tags={STACK_TAG: settings.stack, **identity(settings)}
            )
            for kind in ("network-interface", *(["spot-instances-request"] if settings.cloud.spot else []))
        ],
        opts=opts,
    )


def _spot() -> aws.ec2.LaunchTemplateInstanceMarketOptionsArgs:
    # No highest price: it is on demand's, and a lower one only means more interruptions.
    return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(
        market_type="spot",
        spot_options=aws.ec2.LaunchTemplateInstanceMarketOptionsSpotOptionsArgs(
            spot_instance_type="one-time", instance_interruption_behavior="terminate"
        ),
    )


def _node(
    settings: Settings,
    index: int,
    golden: Golden,
    template: aws.ec2.LaunchTemplate,
    ground: Ground,
    first: list[pulumi.Resource],
    reservation: str,
) -> Node:
    """`first`: what must be there before it; `reservation`: the id of the one that it is put into, or empty."""
    called, public = naming.node(index), is_public(settings, index)
    subnet = ground.network.public if public else ground.network.private
    assert subnet is not None  # there is a private one wherever a node is not public
    text = user_data.for_node(settings, golden.key, called, naming.role(index), baked=True)
    instance = aws.ec2.Instance(
        called,
        launch_template=aws.ec2.InstanceLaunchTemplateArgs(id=template.id, version=template.latest_version.apply(str)),
        ami=golden.ami,
        user_data_base64=check_user_data(text, called),
        user_data_replace_on_change=True,  # a node that runs does not read it again
        subnet_id=subnet.id,
        private_ip=address(settings, index),
        associate_public_ip_address=public,
        # Here and not in the template, which must not have them beside an interface of its own.
        vpc_security_group_ids=[ground.security.nodes.id],
        capacity_reservation_specification=_inside(reservation) if reservation else None,
        tags=titled(settings, called),
        volume_tags={**tags(settings), **titled(settings, called)},
        opts=pulumi.ResourceOptions(
            provider=ground.provider,
            depends_on=first,
            ignore_changes=None if settings.cloud.replace_nodes else KEPT,
            # EC2 changes it of a stopped machine only.
            replace_on_changes=["capacity_reservation_specification"],
            delete_before_replace=True,  # its address is wanted again
            custom_timeouts=pulumi.CustomTimeouts(create="15m", delete="20m"),
        ),
    )
    known = HostKey(
        f"{called}-host-key",
        node=called,
        region=region(settings),
        instance=instance.id,
        opts=pulumi.ResourceOptions(),
    )
    return Node(instance, instance.public_ip, known.host_key)


def _inside(reservation: str) -> aws.ec2.InstanceCapacityReservationSpecificationArgs:
    target = aws.ec2.InstanceCapacityReservationSpecificationCapacityReservationTargetArgs
    return aws.ec2.InstanceCapacityReservationSpecificationArgs(
        capacity_reservation_target=target(capacity_reservation_id=reservation)
    )
