"""The kinds of EC2's resources that a stack has, all found by its tag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from infra.clouds.aws import api, removal
from infra.clouds.aws.place import AccountRegion, FoundResource, Item, ResourceKind, kubernetes_cluster
from infra.clouds.naming import ID_TAG, OWNER_TAG, STACK_TAG

_HELD_ADDRESS = (*removal.HELD, "AuthFailure")
"""EC2 answers AuthFailure for an address that a NAT gateway still holds."""
_PLANE = "Amazon EKS "
"""What the description of a control plane's network interface begins with; the cluster's name follows."""


def _named(item: Item, identifier: str) -> str:
    name = api.tags(item).get("Name", "")
    return f"{identifier} ({name})" if name else identifier


def _exists(item: Item) -> bool:
    return item.get("State") not in ("deleted", "deleting")


def _kind(
    name: str,
    key: str,
    identifier: str,
    remove: str | Callable[[AccountRegion, str], None],
    argument: str = "",
    *,
    types: str = "",
    what: Callable[[Item, str], str] = _named,
    price: Callable[[AccountRegion, Item], float | None] = lambda _place, _item: 0.0,
    exists: Callable[[Item], bool] = _exists,
    prepare: Callable[[AccountRegion, list[str]], None] | None = None,
    **more: Any,
) -> ResourceKind:
    """A kind that EC2 lists by tag, with the arguments `more`, its items under `key` and their ids under `identifier`.

    `remove` may be an operation of EC2, whose `argument` (by default `identifier`) takes one id or a list.
    """
    type_ = name.lower().replace(" ", "-")

    def listed(place: AccountRegion) -> Iterator[FoundResource]:
        for item in filter(exists, place.tagged(key, **more)):
            name = item[identifier]
            yield FoundResource(api.tags(item), what(item, name), name, usd_per_hour=price(place, item))

    arn = f"arn:{{place.partition}}:ec2:{{place.region}}:{{place.account}}:{type_}/{{name}}"
    return ResourceKind(
        *(name, types or f"ec2:{type_}", listed),
        _call(remove, argument or identifier) if isinstance(remove, str) else remove,
        prepare,
        arn=arn if identifier.endswith("Name") else "",
    )


def _call(operation: str, argument: str) -> Callable[[AccountRegion, str], None]:
    def remove(place: AccountRegion, name: str) -> None:
        value = [name] if argument.endswith("Ids") else name
        removal.call(place.client("ec2"), operation, **{argument: value})

    return remove


def _instances(place: AccountRegion) -> Iterator[FoundResource]:
    for item in api.instances(place.client("ec2"), api.where(f"tag:{STACK_TAG}", place.claim.stack)):
        state, type_ = item["State"]["Name"], item["InstanceType"]
        if state != "terminated" and place.is_of_stack(item):
            sku = f"{type_}/spot" if item.get("InstanceLifecycle") == "spot" else type_
            price = place.price(sku) if state in ("pending", "running") else 0.0
            what = f"{_named(item, item['InstanceId'])} {type_} {state}"
            yield FoundResource(api.tags(item), what, item["InstanceId"], usd_per_hour=price)


def _end_instances(place: AccountRegion, names: list[str]) -> None:
    """Terminate all at once, and wait, because disks, addresses and security groups become free only then."""
    ec2 = place.client("ec2")
    for name in names:
        removal.call(ec2, "terminate_instances", InstanceIds=[name])
    if names:
        removal.wait(ec2, "instance_terminated", Filters=api.where("instance-id", *names))


def _unused(item: Item, name: str) -> str:
    return f"{name} {item['InstanceType']}, {item['AvailableInstanceCount']} of {item['TotalInstanceCount']} unused"


def _unused_price(place: AccountRegion, item: Item) -> float | None:
    """Unused reserved capacity costs as much as the machines would."""
    unused = item["AvailableInstanceCount"]
    return place.price(item["InstanceType"], unused) if unused else 0.0


def _volumes(place: AccountRegion) -> Iterator[FoundResource]:
    for item in filter(_exists, place.tagged("Volumes")):
        name, size = item["VolumeId"], item["Size"]
        attached = [entry["InstanceId"] for entry in item.get("Attachments", []) if "InstanceId" in entry]
        price = place.price("gp3-gb-month", size) if item.get("VolumeType") == "gp3" else None
        what = f"{_named(item, name)} {size} GB {item['State']}"
        yield FoundResource(api.tags(item), what, attached[0] if attached else name, name, price)


def _snapshots_of(image: Item) -> list[str]:
    mapped = (entry.get("Ebs", {}).get("SnapshotId") for entry in image.get("BlockDeviceMappings", []))
    return [name for name in mapped if name]


def _remove_image(place: AccountRegion, name: str) -> None:
    """Deregister an image. First copy its tags to its snapshots, so that a repeated sweep still finds them."""
    ec2 = place.client("ec2")
    for image in place.described("Images", Filters=api.where("image-id", name)):
        if snapshots := _snapshots_of(image):
            ours = [tag for tag in image.get("Tags", []) if tag["Key"] in (STACK_TAG, ID_TAG, OWNER_TAG)]
            ec2.create_tags(Resources=snapshots, Tags=ours)
    removal.call(ec2, "deregister_image", ImageId=name)


def _snapshots(place: AccountRegion) -> Iterator[FoundResource]:
    """Those with the tag, and those of an image with the tag: EC2 makes them without tags."""
    of_image = {name: image for image in place.tagged("Images", Owners=["self"]) for name in _snapshots_of(image)}
    found = {item["SnapshotId"]: item for item in place.tagged("Snapshots", OwnerIds=["self"])}
    if untagged := [name for name in of_image if name not in found]:
        listed = place.described("Snapshots", Filters=api.where("snapshot-id", *untagged))
        found |= {item["SnapshotId"]: item for item in listed if item["SnapshotId"] in untagged}
    for name, item in found.items():
        size, image = item["VolumeSize"], of_image.get(name)
        tags = api.tags(item if place.is_of_stack(item) or image is None else image)
        owner = image["ImageId"] if image else name
        price = place.price("ebs-snapshot-gb-month", size)
        yield FoundResource(tags, f"{_named(item, name)} of {size} GB", owner, name, price)


def _remove_nat_gateway(place: AccountRegion, name: str) -> None:
    """Delete a NAT gateway and wait, because its address and its subnet become free only then."""
    ec2 = place.client("ec2")
    removal.call(ec2, "delete_nat_gateway", NatGatewayId=name)
    removal.wait(ec2, "nat_gateway_deleted", NatGatewayIds=[name])


def _remove_address(place: AccountRegion, name: str) -> None:
    ec2 = place.client("ec2")
    for item in place.described("Addresses", Filters=api.where("allocation-id", name)):
        if association := item.get("AssociationId"):
            removal.call(ec2, "disassociate_address", _HELD_ADDRESS, AssociationId=association)
    removal.call(ec2, "release_address", _HELD_ADDRESS, AllocationId=name)


def _interfaces(place: AccountRegion) -> Iterator[FoundResource]:
    """Those with the tag, and unattached ones in the stack's VPC: they would block its deletion."""
    found = place.tagged("NetworkInterfaces")
    own = {item["VpcId"] for item in place.tagged("Vpcs") if not place.claim.whose(api.tags(item))}
    for network in sorted(own):
        found += place.described("NetworkInterfaces", Filters=api.where("vpc-id", network))
    for name, item in {entry["NetworkInterfaceId"]: entry for entry in found}.items():
        is_nat = item.get("InterfaceType", "interface") in ("nat_gateway", "natGateway")
        if is_nat or "InstanceId" in item.get("Attachment", {}) or is_of_kubernetes(item):
            continue  # the last are listed as what EKS has left (infra.clouds.aws.eks_kinds)
        if place.is_of_stack(item):
            yield FoundResource(api.tags(item), name, name)
        elif item.get("VpcId") in own and not (item.get("RequesterManaged") and name in _of_file_systems(place)):
            yield FoundResource(None, f"{name}, in the stack's network without its tag", name)


def is_of_kubernetes(item: Item) -> bool:
    """Whether a network interface was made by EKS: for pods, or for the control plane, whose have no tags."""
    return bool(kubernetes_cluster(api.tags(item))) or bool(plane_of(item))


def plane_of(item: Item) -> str:
    """The name of the EKS cluster whose control plane has this network interface; empty: none."""
    text = str(item.get("Description", ""))
    return text.removeprefix(_PLANE) if text.startswith(_PLANE) else ""


def _of_file_systems(place: AccountRegion) -> set[str]:
    """Interfaces of FSx's file systems: they have no tag, and go with their file system."""
    listed = api.pages(place.client("fsx"), "describe_file_systems", "FileSystems")
    return {interface for item in listed for interface in item.get("NetworkInterfaceIds", [])}


def empty_groups(place: AccountRegion, names: list[str]) -> None:
    """Remove all rules from all groups: two groups that refer to each other could not be deleted otherwise."""
    ec2 = place.client("ec2")
    for group in place.described("SecurityGroups", Filters=api.where("group-id", *names)) if names else ():
        if rules := group.get("IpPermissions"):
            ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=rules)
        if rules := group.get("IpPermissionsEgress"):
            ec2.revoke_security_group_egress(GroupId=group["GroupId"], IpPermissions=rules)


def _remove_route_table(place: AccountRegion, name: str) -> None:
    ec2 = place.client("ec2")
    for table in place.described("RouteTables", Filters=api.where("route-table-id", name)):
        for entry in table.get("Associations", []):
            if entry.get("Main"):
                return  # it is deleted with its VPC
            removal.call(ec2, "disassociate_route_table", AssociationId=entry["RouteTableAssociationId"])
    removal.call(ec2, "delete_route_table", RouteTableId=name)


def _remove_internet_gateway(place: AccountRegion, name: str) -> None:
    ec2 = place.client("ec2")
    for gateway in place.described("InternetGateways", Filters=api.where("internet-gateway-id", name)):
        for entry in gateway.get("Attachments", []):
            removal.call(ec2, "detach_internet_gateway", InternetGatewayId=name, VpcId=entry["VpcId"])
    removal.call(ec2, "delete_internet_gateway", InternetGatewayId=name)


EC2_KINDS = (
    ResourceKind("instance", "ec2:instance", _instances, lambda _place, _name: None, prepare=_end_instances),
    _kind(
        *("spot request", "SpotInstanceRequests", "SpotInstanceRequestId"),
        *("cancel_spot_instance_requests", "SpotInstanceRequestIds"),
        types="ec2:spot-instances-request",
        # An active request belongs to its instance; an open one may still become an instance.
        exists=lambda item: item["State"] == "open",
    ),
    _kind(
        *("capacity reservation", "CapacityReservations", "CapacityReservationId", "cancel_capacity_reservation"),
        what=_unused,
        price=_unused_price,
        exists=lambda item: item["State"] in ("active", "pending"),
    ),
    _kind(
        *("image", "Images", "ImageId", _remove_image),
        what=lambda item, name: f"{name} ({item.get('Name', '')})",
        Owners=["self"],
    ),
    ResourceKind("snapshot", "ec2:snapshot", _snapshots, _call("delete_snapshot", "SnapshotId")),
    ResourceKind("volume", "ec2:volume", _volumes, _call("delete_volume", "VolumeId")),
    _kind(
        *("NAT gateway", "NatGateways", "NatGatewayId", _remove_nat_gateway),
        types="ec2:natgateway",
        what=lambda item, name: f"{_named(item, name)} {item['State']}",
        price=lambda place, _item: place.price("nat-gateway"),
        exists=lambda item: item["State"] != "deleted",
        filters="Filter",
    ),
    _kind(
        *("address", "Addresses", "AllocationId", _remove_address),
        types="ec2:elastic-ip",
        what=lambda item, _name: str(item["PublicIp"]),
        price=lambda place, _item: place.price("public-ipv4"),
    ),
    _kind("VPC endpoint", "VpcEndpoints", "VpcEndpointId", "delete_vpc_endpoints", "VpcEndpointIds"),
    _kind(
        *("flow log", "FlowLogs", "FlowLogId", "delete_flow_logs", "FlowLogIds"),
        types="ec2:vpc-flow-log",
        filters="Filter",
    ),
    ResourceKind(
        *("network interface", "ec2:network-interface", _interfaces),
        _call("delete_network_interface", "NetworkInterfaceId"),
    ),
    _kind("launch template", "LaunchTemplates", "LaunchTemplateId", "delete_launch_template"),
    _kind("placement group", "PlacementGroups", "GroupName", "delete_placement_group"),
    _kind("key pair", "KeyPairs", "KeyName", "delete_key_pair"),
    _kind(
        *("security group", "SecurityGroups", "GroupId", "delete_security_group"),
        types="ec2:security-group ec2:security-group-rule",
        exists=lambda item: item["GroupName"] != "default",  # which cannot be deleted, and goes with its VPC
        prepare=empty_groups,
    ),
    _kind("subnet", "Subnets", "SubnetId", "delete_subnet"),
    _kind("route table", "RouteTables", "RouteTableId", _remove_route_table),
    _kind("internet gateway", "InternetGateways", "InternetGatewayId", _remove_internet_gateway),
    _kind("VPC", "Vpcs", "VpcId", "delete_vpc"),
)
"""In the order of removal."""
