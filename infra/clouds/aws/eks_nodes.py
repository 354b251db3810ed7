"""The nodes of an EKS cluster: two managed groups, each with a launch template of ours.

`system`: small machines in both zones, for what Kubernetes itself needs. `gpus`: the workers, in one zone, close
together, with EFA on every network card; a taint keeps all pods away that ask for no GPU. EKS gives both its own image,
and replaces a node that fails.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import capacity, eks, eks_roles, interfaces, machine_types
from infra.clouds.aws.eks_cluster import ControlPlane
from infra.clouds.aws.names import after, named, region, titled
from infra.clouds.aws.network import Network
from infra.clouds.aws.place import KUBERNETES_TAG
from infra.clouds.aws.zones import zone
from infra.clouds.naming import OWNER_TAG, STACK_TAG, identity
from infra.config.settings import Settings

ROOT = "/dev/xvda"
"""The root disk of EKS's images."""
TIMEOUTS = pulumi.CustomTimeouts(create="40m", update="60m", delete="40m")
NODE_CONFIG = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
"""
"""What EKS's image reads at its first boot, beside what EKS adds: containers and images are on the machine's own NVMe
disks, as one. https://awslabs.github.io/amazon-eks-ami/nodeadm/"""


@dataclass(frozen=True)
class Ground:
    """What the nodes stand on."""

    provider: aws.Provider
    network: Network
    group: aws.ec2.SecurityGroup
    """Ours, in which EFA's traffic is allowed, and from which the file system is reached."""
    plane: ControlPlane
    first: list[pulumi.Resource]
    """What a node needs to become ready: routes, rules, the first add-ons."""


@dataclass(frozen=True)
class Nodes:
    """The two groups of nodes."""

    system: aws.eks.NodeGroup
    gpus: aws.eks.NodeGroup

    @property
    def scaling_group(self) -> pulumi.Output[str]:
        """Name of the Auto Scaling group that starts the nodes with GPUs."""
        return self.gpus.resources.apply(lambda found: str((found[0].autoscaling_groups or [])[0].name))


def user_data() -> str:
    """The configuration as a MIME message, base64: the form that launch templates of EKS's groups take."""
    boundary = "==trainyard=="
    lines = [
        *("MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{boundary}"', "", f"--{boundary}"),
        *("Content-Type: application/node.eks.aws", "", NODE_CONFIG, f"--{boundary}--", ""),
    ]
    return base64.b64encode("\n".join(lines).encode()).decode()


def declare(settings: Settings, ground: Ground, given: capacity.Given | None) -> Nodes:
    """`given`: the reservation that the user made for the nodes with GPUs."""
    role = eks_roles.nodes(settings, ground.provider)
    return Nodes(_system(settings, ground, role), _gpus(settings, ground, role, given))


def _system(settings: Settings, ground: Ground, role: eks_roles.Role) -> aws.eks.NodeGroup:
    assert ground.network.private is not None and ground.network.second is not None
    template = _template(settings, ground, eks.SYSTEM_GROUP, eks.SYSTEM_DISK_GB, vpc_security_group_ids=_groups(ground))
    return _group(
        settings,
        ground,
        (eks.SYSTEM_GROUP, role, template),
        ami_type="AL2023_x86_64_STANDARD",
        instance_types=[eks.SYSTEM.name],
        capacity_type="ON_DEMAND",
        subnet_ids=[ground.network.private.id, ground.network.second.id],
        scaling_config=aws.eks.NodeGroupScalingConfigArgs(
            min_size=eks.SYSTEM_NODES, max_size=eks.SYSTEM_NODES + 1, desired_size=eks.SYSTEM_NODES
        ),
    )


def _gpus(settings: Settings, ground: Ground, role: eks_roles.Role, given: capacity.Given | None) -> aws.eks.NodeGroup:
    assert ground.network.private is not None
    opts, machine = pulumi.ResourceOptions(provider=ground.provider), machine_types.of(settings)
    name: pulumi.Output[str] | None = None
    reserved: capacity.Reserved | None = None
    if given is None:
        together = aws.ec2.PlacementGroup(
            "together", name=named(settings), strategy="cluster", tags=titled(settings), opts=opts
        )
        name = together.name
        if capacity.wanted(settings):
            where: dict[str, pulumi.Input[str]] = {"type": machine.name, "zone": zone(settings), "group": together.arn}
            reserved = capacity.Reserved(settings, where, after(pulumi.ResourceOptions(), *ground.first))
    elif given.group:
        name = pulumi.Output.from_input(given.group)
    template = _template(
        settings, ground, eks.GPU_GROUP, settings.cloud.disk_gb, **_of_gpus(settings, ground, given, name)
    )
    made = _group(
        settings,
        ground,
        (eks.GPU_GROUP, role, template),
        *([reserved] if reserved else []),
        ami_type="AL2023_x86_64_NVIDIA",
        instance_types=[machine.name],
        capacity_type=_market(settings, given),
        subnet_ids=[ground.network.private.id],
        # None may be left: after maxHours there are none, and the next `up` brings them back.
        scaling_config=aws.eks.NodeGroupScalingConfigArgs(
            min_size=0, max_size=settings.nodes, desired_size=settings.nodes
        ),
        # There may be no room for one more while an old one still runs.
        update_config=aws.eks.NodeGroupUpdateConfigArgs(max_unavailable=1, update_strategy="MINIMAL"),
        taints=[aws.eks.NodeGroupTaintArgs(key=eks.GPU, value="present", effect="NO_SCHEDULE")],
    )
    if reserved is not None:
        done = pulumi.ResourceOptions(depends_on=[made])
        capacity.Released(region(settings), reservation=reserved.reservation, opts=done)
    return made


def _market(settings: Settings, given: capacity.Given | None) -> str:
    """How the nodes are bought; EKS asks it of the group, and of the template only for a block."""
    if given is not None and given.block:
        return "CAPACITY_BLOCK"
    return "SPOT" if settings.cloud.spot else "ON_DEMAND"


def _groups(ground: Ground) -> list[pulumi.Input[str]]:
    """EKS adds its own group only to machines whose template names none."""
    return [ground.plane.group, ground.group.id]


def _of_gpus(
    settings: Settings, ground: Ground, given: capacity.Given | None, group: pulumi.Output[str] | None
) -> dict[str, Any]:
    """The template's part about network cards, place and capacity."""
    found: dict[str, Any] = {"user_data": user_data()}
    if cards := machine_types.of(settings).efa_cards:
        found["network_interfaces"] = interfaces.on_cards(cards, {"security_groups": _groups(ground)})
    else:
        found["vpc_security_group_ids"] = _groups(ground)
    if group is not None:
        found["placement"] = aws.ec2.LaunchTemplatePlacementArgs(group_name=group)
    if given is not None:
        target = aws.ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
            capacity_reservation_id=given.id
        )
        found["capacity_reservation_specification"] = aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
            capacity_reservation_target=target
        )
        if given.block:
            market = aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block")
            found["instance_market_options"] = market
    return found


def _template(settings: Settings, ground: Ground, name: str, disk_gb: int, **more: Any) -> aws.ec2.LaunchTemplate:
    """EKS refuses a template that says anything of the instance's role, its subnet or how it shuts down."""
    disk = aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
        volume_type="gp3",
        volume_size=disk_gb,
        encrypted="true",  # a launch template wants a string
        delete_on_termination="true",
    )
    # Only tags that never change: a new version of the template would replace the nodes.
    fixed = {STACK_TAG: settings.stack, OWNER_TAG: settings.cloud.owner, **identity(settings)}
    own = {**fixed, KUBERNETES_TAG: eks.cluster_name(settings), **titled(settings, name)}
    return aws.ec2.LaunchTemplate(
        f"{name}-template",
        name=named(settings, name),
        description=f"Nodes of the Trainyard stack {settings.stack}: {name}",
        update_default_version=True,
        # One hop: pods have their rights by Pod Identity, and never the node's.
        metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
        ),
        block_device_mappings=[aws.ec2.LaunchTemplateBlockDeviceMappingArgs(device_name=ROOT, ebs=disk)],
        monitoring=aws.ec2.LaunchTemplateMonitoringArgs(enabled=settings.cloud.monitoring),
        tag_specifications=[
            aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=own)
            for kind in ("instance", "volume", "network-interface")
        ],
        opts=pulumi.ResourceOptions(provider=ground.provider),
        **more,
    )


def _group(
    settings: Settings,
    ground: Ground,
    what: tuple[str, eks_roles.Role, aws.ec2.LaunchTemplate],
    *first: pulumi.Resource,
    **more: Any,
) -> aws.eks.NodeGroup:
    """A managed group. `what`: its name, role and template. `first`: what must exist before it, beside the ground."""
    name, role, template = what
    return aws.eks.NodeGroup(
        name,
        cluster_name=ground.plane.cluster.name,
        node_group_name=name,
        node_role_arn=role.arn,
        launch_template=aws.eks.NodeGroupLaunchTemplateArgs(id=template.id, version=template.latest_version.apply(str)),
        labels={"trainyard/nodes": name},
        node_repair_config=aws.eks.NodeGroupNodeRepairConfigArgs(enabled=True),
        tags=titled(settings, name),
        opts=pulumi.ResourceOptions.merge(
            after(pulumi.ResourceOptions(provider=ground.provider), *ground.first, *role.first, *first),
            pulumi.ResourceOptions(
                ignore_changes=None if settings.cloud.replace_nodes else ["launch_template"],
                delete_before_replace=True,  # the name is the same
                custom_timeouts=TIMEOUTS,
            ),
        ),
        **more,
    )
