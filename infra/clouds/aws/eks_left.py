"""What EKS and its controllers leave in an account, found by the cluster's name in tags of their own.

    Auto Scaling groups   of a node group that could not be deleted: it would start machines anew
    load balancers        of a Service or an Ingress, with target groups
    volumes               of a persistent volume claim, when the cluster went first
    network interfaces    of pods, when a node ended before it gave them back; of the control plane
    security groups       EKS's own for the cluster, while an interface is in it; those of load balancers
    launch templates      copies that EKS makes of ours
    log group             made again by the last lines of a control plane, without tags

Each costs on, or keeps the network from being deleted. While the cluster is there they belong to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from infra.clouds.aws import api, eks, removal
from infra.clouds.aws.ec2_kinds import empty_groups, plane_of
from infra.clouds.aws.place import AccountRegion, FoundResource, Item, ResourceKind, kubernetes_cluster

_BATCH = 20
"""Load balancers, and target groups, whose tags one request may ask for."""


def _of_ec2(
    key: str, identifier: str, price: Callable[[AccountRegion, Item], float | None] = lambda _place, _item: 0.0
) -> Callable[[AccountRegion], Iterator[FoundResource]]:
    """A lister of what EC2 has under `key` with a cluster's name in a tag."""

    def listed(place: AccountRegion) -> Iterator[FoundResource]:
        for name in place.eks_names:
            # A filter takes a tag's key or its value, and the cluster's name is in either.
            found = [
                *place.described(key, Filters=api.where("tag-value", name)),
                *place.described(key, Filters=api.where("tag-key", f"kubernetes.io/cluster/{name}")),
            ]
            for own, item in {entry[identifier]: entry for entry in found}.items():
                tags = api.tags(item)
                # What our templates made has the stack's tag as well, and is of the ordinary kinds.
                if kubernetes_cluster(tags) == name and not place.claim.is_of_stack(tags):
                    yield FoundResource(tags, f"{own} of {name}", own, usd_per_hour=price(place, item))

    return listed


def _interfaces(place: AccountRegion) -> Iterator[FoundResource]:
    """Those that no machine and no control plane has any more; also such as have the stack's tag."""
    for name in place.eks_names:
        found = [
            *place.described("NetworkInterfaces", Filters=api.where("tag-value", name)),
            *place.described("NetworkInterfaces", Filters=api.where("description", f"Amazon EKS {name}")),
        ]
        for own, item in {entry["NetworkInterfaceId"]: entry for entry in found}.items():
            tags = api.tags(item)
            if name in (kubernetes_cluster(tags), plane_of(item)) and item.get("Status") == "available":
                yield FoundResource(tags, f"{own} ({item.get('Description') or 'a network interface'})", own)


def _scaling_groups(place: AccountRegion) -> Iterator[FoundResource]:
    for item in api.pages(place.client("autoscaling"), "describe_auto_scaling_groups", "AutoScalingGroups"):
        if kubernetes_cluster(tags := api.tags(item)) in place.eks_names:
            what = f"{item['AutoScalingGroupName']} of {item['DesiredCapacity']} machines"
            yield FoundResource(tags, what, item["AutoScalingGroupName"])


def _balancers(place: AccountRegion) -> Iterator[FoundResource]:
    """Of both kinds: the newer by their ARN, the older by their name."""
    yield from _balanced(place, "LoadBalancers", "LoadBalancerArn", "LoadBalancerName", price=None)
    client = place.client("elb")
    for part in _parts(api.pages(client, "describe_load_balancers", "LoadBalancerDescriptions")):
        names = [item["LoadBalancerName"] for item in part]
        for entry in client.describe_tags(LoadBalancerNames=names)["TagDescriptions"]:
            if kubernetes_cluster(tags := api.tags(entry)) in place.eks_names:
                yield FoundResource(tags, entry["LoadBalancerName"], entry["LoadBalancerName"], usd_per_hour=None)


def _target_groups(place: AccountRegion) -> Iterator[FoundResource]:
    yield from _balanced(place, "TargetGroups", "TargetGroupArn", "TargetGroupName", price=0.0)


def _balanced(place: AccountRegion, key: str, arn: str, name: str, price: float | None) -> Iterator[FoundResource]:
    client, operation = place.client("elbv2"), "describe_load_balancers"
    operation = operation if key == "LoadBalancers" else "describe_target_groups"
    for part in _parts(api.pages(client, operation, key)):
        called = {item[arn]: item[name] for item in part}
        for entry in client.describe_tags(ResourceArns=list(called))["TagDescriptions"]:
            if kubernetes_cluster(tags := api.tags(entry)) in place.eks_names:
                own = entry["ResourceArn"]
                yield FoundResource(tags, called[own], own, usd_per_hour=price)


def _parts(items: list[Item]) -> Iterator[list[Item]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))


def _remove_balancer(place: AccountRegion, name: str) -> None:
    if name.startswith("arn:"):
        removal.call(place.client("elbv2"), "delete_load_balancer", LoadBalancerArn=name)
    else:
        removal.call(place.client("elb"), "delete_load_balancer", LoadBalancerName=name)


def _logs(place: AccountRegion) -> Iterator[FoundResource]:
    """Without the stack's tag; one that has it is of the ordinary kind."""
    client = place.client("logs")
    for name in place.eks_names:
        own = eks.log_group(name)
        for item in api.pages(client, "describe_log_groups", "logGroups", logGroupNamePrefix=own):
            tags = dict(client.list_tags_for_resource(resourceArn=item["arn"].removesuffix(":*"))["tags"])
            if item["logGroupName"] == own and not place.claim.is_of_stack(tags):
                price = None if item.get("storedBytes") else 0.0
                yield FoundResource({"eks:cluster-name": name}, own, own, usd_per_hour=price)


def _volume_price(place: AccountRegion, item: Item) -> float | None:
    return place.price("gp3-gb-month", item["Size"]) if item.get("VolumeType") == "gp3" else None


def _ec2(operation: str, argument: str) -> Callable[[AccountRegion, str], None]:
    def remove(place: AccountRegion, name: str) -> None:
        removal.call(place.client("ec2"), operation, **{argument: name})

    return remove


def _kind(
    name: str,
    listed: Callable[[AccountRegion], Iterator[FoundResource]],
    remove: Callable[[AccountRegion, str], None],
    types: str = "",
    **more: Any,
) -> ResourceKind:
    return ResourceKind(name, types, listed, remove, only=(eks.CLUSTER,), **more)


def _remove_scaling_group(place: AccountRegion, name: str) -> None:
    """With its machines."""
    client = place.client("autoscaling")
    removal.call(client, "delete_auto_scaling_group", AutoScalingGroupName=name, ForceDelete=True)


LEFT = (
    _kind("Auto Scaling group", _scaling_groups, _remove_scaling_group, "autoscaling:autoScalingGroup"),
    _kind("load balancer", _balancers, _remove_balancer, "elasticloadbalancing:loadbalancer"),
    _kind(
        "target group",
        _target_groups,
        lambda place, name: removal.call(
            place.client("elbv2"), "delete_target_group", (*removal.HELD, "ResourceInUse"), TargetGroupArn=name
        ),
        "elasticloadbalancing:targetgroup",
    ),
    _kind("volume of a claim", _of_ec2("Volumes", "VolumeId", _volume_price), _ec2("delete_volume", "VolumeId")),
    _kind("interface of EKS", _interfaces, _ec2("delete_network_interface", "NetworkInterfaceId")),
    _kind(
        "security group of EKS",
        _of_ec2("SecurityGroups", "GroupId"),
        _ec2("delete_security_group", "GroupId"),
        prepare=empty_groups,
    ),
    _kind(
        "launch template of EKS",
        _of_ec2("LaunchTemplates", "LaunchTemplateId"),
        _ec2("delete_launch_template", "LaunchTemplateId"),
    ),
    _kind(
        "log of a control plane",
        _logs,
        lambda place, name: removal.call(place.client("logs"), "delete_log_group", logGroupName=name),
    ),
)
"""In the order of removal."""
