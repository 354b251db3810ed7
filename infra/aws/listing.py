"""Everything of a stack in its region and account, kind by kind: what carries its tag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infra import prices
from infra.aws import api, contents
from infra.errors import UsageError
from infra.naming import STACK_TAG
from infra.thing import Thing


@dataclass(frozen=True)
class Place:
    """Whose things are looked for, and where."""

    stack: str
    region: str
    account: str
    partition: str

    def client(self, service: str) -> Any:
        return api.client(service, self.region)

    def of_ec2(self, operation: str, key: str, *, argument: str = "Filters", **more: Any) -> list[dict[str, Any]]:
        """What EC2 lists with the stack's tag; the tag is read again: a filter that is ignored must not widen it."""
        more[argument] = [{"Name": f"tag:{STACK_TAG}", "Values": [self.stack]}]
        return [item for item in api.pages(self.client("ec2"), operation, key, **more) if self.is_ours(item)]

    def is_ours(self, item: dict[str, Any]) -> bool:
        return api.tags(item).get(STACK_TAG) == self.stack

    def may_name(self, name: str) -> bool:
        """Whether the stack may have given this name; `yard` begins as `yard-2` does, so its tag has the last word."""
        return f"{name.strip('/').replace('/', '-')}-".startswith(f"trainyard-{self.stack}-")

    def price(self, sku: str, count: float = 1) -> float | None:
        """US dollars per hour; None where the table has no price."""
        try:
            return prices.line("aws", self.region, sku, count).usd_per_hour
        except UsageError:
            return None


Lister = Callable[[Place], Iterator[Thing]]


def _named(item: dict[str, Any], identifier: str) -> str:
    name = api.tags(item).get("Name", "")
    return f"{identifier} ({name})" if name else identifier


def instances(place: Place) -> Iterator[Thing]:
    wanted = [{"Name": f"tag:{STACK_TAG}", "Values": [place.stack]}]
    for reservation in api.pages(place.client("ec2"), "describe_instances", "Reservations", Filters=wanted):
        for item in reservation["Instances"]:
            state = item["State"]["Name"]
            if state != "terminated" and place.is_ours(item):
                kind = item["InstanceType"]
                sku = f"{kind}/spot" if item.get("InstanceLifecycle") == "spot" else kind
                runs = state in ("pending", "running")
                what = f"{_named(item, item['InstanceId'])} {kind} {state}"
                yield Thing("instance", what, item["InstanceId"], usd_per_hour=place.price(sku) if runs else 0.0)


def spot_requests(place: Place) -> Iterator[Thing]:
    for item in place.of_ec2("describe_spot_instance_requests", "SpotInstanceRequests"):
        # One that is active belongs to its instance; an open one may still become an instance.
        if item["State"] == "open":
            yield Thing("spot request", item["SpotInstanceRequestId"], item["SpotInstanceRequestId"])


def capacity_reservations(place: Place) -> Iterator[Thing]:
    """What is reserved and not used costs as much as the machines would."""
    for item in place.of_ec2("describe_capacity_reservations", "CapacityReservations"):
        if item["State"] in ("active", "pending"):
            unused, name = item["AvailableInstanceCount"], item["CapacityReservationId"]
            what = f"{name} {item['InstanceType']}, {unused} of {item['TotalInstanceCount']} unused"
            price = place.price(item["InstanceType"], unused) if unused else 0.0
            yield Thing("capacity reservation", what, name, usd_per_hour=price)


def volumes(place: Place) -> Iterator[Thing]:
    for item in place.of_ec2("describe_volumes", "Volumes"):
        if item["State"] in ("deleting", "deleted"):
            continue
        attached = [entry["InstanceId"] for entry in item.get("Attachments", []) if "InstanceId" in entry]
        price = place.price("gp3-gb-month", item["Size"]) if item.get("VolumeType") == "gp3" else None
        what = f"{_named(item, item['VolumeId'])} {item['Size']} GB {item['State']}"
        yield Thing("volume", what, attached[0] if attached else item["VolumeId"], item["VolumeId"], price)


def images(place: Place) -> Iterator[Thing]:
    for item in place.of_ec2("describe_images", "Images", Owners=["self"]):
        yield Thing("image", f"{item['ImageId']} ({item.get('Name', '')})", item["ImageId"])


def snapshots(place: Place) -> Iterator[Thing]:
    """Those with the tag, and those of an image with the tag: EC2 makes these without one."""
    of_image = {
        mapping["Ebs"]["SnapshotId"]: image["ImageId"]
        for image in place.of_ec2("describe_images", "Images", Owners=["self"])
        for mapping in image.get("BlockDeviceMappings", [])
        if "SnapshotId" in mapping.get("Ebs", {})
    }
    found = {item["SnapshotId"]: item for item in place.of_ec2("describe_snapshots", "Snapshots", OwnerIds=["self"])}
    untagged = [name for name in of_image if name not in found]
    if untagged:
        wanted = [{"Name": "snapshot-id", "Values": untagged}]
        listed = api.pages(place.client("ec2"), "describe_snapshots", "Snapshots", Filters=wanted)
        found |= {item["SnapshotId"]: item for item in listed if item["SnapshotId"] in untagged}
    for name, item in found.items():
        size = item["VolumeSize"]
        price = place.price("ebs-snapshot-gb-month", size)
        yield Thing("snapshot", f"{_named(item, name)} of {size} GB", of_image.get(name, name), name, price)


def addresses(place: Place) -> Iterator[Thing]:
    for item in place.of_ec2("describe_addresses", "Addresses"):
        yield Thing("address", item["PublicIp"], item["AllocationId"], usd_per_hour=place.price("public-ipv4"))


def nat_gateways(place: Place) -> Iterator[Thing]:
    for item in place.of_ec2("describe_nat_gateways", "NatGateways", argument="Filter"):
        if item["State"] != "deleted":
            what = f"{_named(item, item['NatGatewayId'])} {item['State']}"
            yield Thing("NAT gateway", what, item["NatGatewayId"], usd_per_hour=place.price("nat-gateway"))


def interfaces(place: Place) -> Iterator[Thing]:
    """Those with the tag, and those in the stack's own network that belong to no instance: they keep it from going."""
    found = place.of_ec2("describe_network_interfaces", "NetworkInterfaces")
    for network in place.of_ec2("describe_vpcs", "Vpcs"):
        wanted = [{"Name": "vpc-id", "Values": [network["VpcId"]]}]
        found += api.pages(place.client("ec2"), "describe_network_interfaces", "NetworkInterfaces", Filters=wanted)
    for item in {entry["NetworkInterfaceId"]: entry for entry in found}.values():
        of_instance = "InstanceId" in item.get("Attachment", {})
        if not of_instance and item.get("InterfaceType", "interface") not in ("nat_gateway", "natGateway"):
            ours, name = place.is_ours(item), item["NetworkInterfaceId"]
            what = name if ours else f"{name}, in the stack's network without its tag"
            yield Thing("network interface", what, name, ours=ours)


def free(kind: str, operation: str, key: str, identifier: str, *, argument: str = "Filters") -> Lister:
    """A kind of EC2's that costs nothing, and of which its id and its name say enough."""

    def lister(place: Place) -> Iterator[Thing]:
        for item in place.of_ec2(operation, key, argument=argument):
            if item.get("State") not in ("deleted", "deleting"):
                yield Thing(kind, _named(item, item[identifier]), item[identifier])

    return lister


def security_groups(place: Place) -> Iterator[Thing]:
    """All but the network's own `default`: nobody can delete it, and it goes with its VPC."""
    for item in place.of_ec2("describe_security_groups", "SecurityGroups"):
        if item["GroupName"] != "default":
            yield Thing("security group", _named(item, item["GroupId"]), item["GroupId"])


def buckets(place: Place) -> Iterator[Thing]:
    client = place.client("s3")
    for item in api.pages(client, "list_buckets", "Buckets", Prefix=f"trainyard-{place.stack}"):
        name = item["Name"]
        if place.may_name(name) and contents.tags(client, name).get(STACK_TAG) == place.stack:
            held = contents.measure(client, name)
            price = place.price("s3-gb-month", held.bytes / 1e9) if held.bytes else 0.0
            yield Thing("bucket", name, name, usd_per_hour=price, holds=held.said())


def roles(place: Place) -> Iterator[Thing]:
    client = place.client("iam")
    for item in api.pages(client, "list_roles", "Roles"):
        name = item["RoleName"]
        if place.may_name(name) and place.is_ours(client.list_role_tags(RoleName=name)):
            yield Thing("role", name, name)


def instance_profiles(place: Place) -> Iterator[Thing]:
    client = place.client("iam")
    for item in api.pages(client, "list_instance_profiles", "InstanceProfiles"):
        name = item["InstanceProfileName"]
        if place.may_name(name):
            found = client.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
            if place.is_ours(found):
                yield Thing("instance profile", name, name)


def budgets(place: Place) -> Iterator[Thing]:
    client = place.client("budgets")
    for item in api.pages(client, "describe_budgets", "Budgets", AccountId=place.account):
        name = item["BudgetName"]
        if place.may_name(name):
            arn = f"arn:{place.partition}:budgets::{place.account}:budget/{name}"
            found = client.list_tags_for_resource(ResourceARN=arn)
            if place.is_ours({"Tags": found.get("ResourceTags")}):
                yield Thing("budget", name, f"{place.account}:{name}")


def log_groups(place: Place) -> Iterator[Thing]:
    client = place.client("logs")
    for item in api.pages(client, "describe_log_groups", "logGroups"):
        name, arn = item["logGroupName"], item["arn"].removesuffix(":*")
        if place.may_name(name):
            found = client.list_tags_for_resource(resourceArn=arn)["tags"]
            if found.get(STACK_TAG) == place.stack:
                yield Thing("log group", name, name, usd_per_hour=None if item.get("storedBytes") else 0.0)


# kind -> (who lists it, the resource types that it answers for in an ARN: service:type)
KINDS: dict[str, tuple[Lister, tuple[str, ...]]] = {
    "instance": (instances, ("ec2:instance",)),
    "spot request": (spot_requests, ("ec2:spot-instances-request",)),
    "capacity reservation": (capacity_reservations, ("ec2:capacity-reservation",)),
    "image": (images, ("ec2:image",)),
    "snapshot": (snapshots, ("ec2:snapshot",)),
    "volume": (volumes, ("ec2:volume",)),
    "NAT gateway": (nat_gateways, ("ec2:natgateway",)),
    "address": (addresses, ("ec2:elastic-ip",)),
    "VPC endpoint": (
        free("VPC endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
        ("ec2:vpc-endpoint",),
    ),
    "flow log": (
        free("flow log", "describe_flow_logs", "FlowLogs", "FlowLogId", argument="Filter"),
        ("ec2:vpc-flow-log",),
    ),
    "network interface": (interfaces, ("ec2:network-interface",)),
    "launch template": (
        free("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
        ("ec2:launch-template",),
    ),
    "placement group": (
        free("placement group", "describe_placement_groups", "PlacementGroups", "GroupName"),
        ("ec2:placement-group",),
    ),
    "key pair": (free("key pair", "describe_key_pairs", "KeyPairs", "KeyName"), ("ec2:key-pair",)),
    "security group": (security_groups, ("ec2:security-group", "ec2:security-group-rule")),
    "subnet": (free("subnet", "describe_subnets", "Subnets", "SubnetId"), ("ec2:subnet",)),
    "route table": (free("route table", "describe_route_tables", "RouteTables", "RouteTableId"), ("ec2:route-table",)),
    "internet gateway": (
        free("internet gateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
        ("ec2:internet-gateway",),
    ),
    "VPC": (free("VPC", "describe_vpcs", "Vpcs", "VpcId"), ("ec2:vpc",)),
    "bucket": (buckets, ("s3:bucket",)),
    "instance profile": (instance_profiles, ("iam:instance-profile",)),
    "role": (roles, ("iam:role",)),
    "log group": (log_groups, ("logs:log-group",)),
    "budget": (budgets, ("budgets:budget",)),
}
"""In the order in which they can be removed."""
