"""Lists the resources in one region of one AWS account that carry a stack's tag, kind by kind, of every owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.clouds.aws import api, bucket_contents
from infra.clouds.live_resource import LiveResource
from infra.clouds.naming import STACK_TAG
from infra.errors import UsageError
from infra.prices import table
from infra.state.ownership import Claim


@dataclass(frozen=True)
class Place:
    """Where to look for a stack's resources, and whose they are."""

    claim: Claim
    region: str
    account: str
    partition: str
    profile: str = ""
    """AWS profile for the requests; empty: the environment's credentials."""

    @property
    def stack(self) -> str:
        return self.claim.stack

    def client(self, service: str) -> Any:
        return api.client(service, self.region, self.profile)

    def of_ec2(self, operation: str, key: str, *, argument: str = "Filters", **more: Any) -> list[dict[str, Any]]:
        """EC2's items with the stack's tag. The tag is checked again, in case the service ignores the filter."""
        more[argument] = [{"Name": f"tag:{STACK_TAG}", "Values": [self.stack]}]
        return [item for item in api.pages(self.client("ec2"), operation, key, **more) if self.is_of_stack(item)]

    def is_of_stack(self, item: dict[str, Any]) -> bool:
        """Whether its tag has the stack's name; stacks of two owners may have the same name."""
        return self.claim.is_of_stack(api.tags(item))

    def live(
        self,
        kind: str,
        what: str,
        owner: str,
        identifier: str = "",
        usd_per_hour: float | None = 0.0,
        *,
        tags: dict[str, str],
        holds: str = "",
    ) -> LiveResource:
        """A resource with the stack's name; its tags say whether the user or another owner has it."""
        whose = self.claim.whose(tags)
        return LiveResource(kind, what, owner, identifier, usd_per_hour, holds, ours=not whose, whose=whose)

    def by_name(
        self, kind: str, names: list[str], tags_of: Callable[[str], dict[str, str]], *, owner: str = ""
    ) -> Iterator[LiveResource]:
        """For a kind that AWS cannot list by tag: those with a name that the stack may have given, and with its tag."""
        for name in filter(self.may_name, names):
            if self.claim.is_of_stack(tags := tags_of(name)):
                yield self.live(kind, name, f"{owner}{name}", tags=tags)

    def may_name(self, name: str) -> bool:
        """Whether the stack may have given this name. `yard` also matches `yard-2...`, so callers check the tag too."""
        return f"{name.strip('/').replace('/', '-')}-".startswith(f"trainyard-{self.stack}-")

    def price(self, sku: str, count: float = 1) -> float | None:
        """US dollars per hour; None if the table lacks the price."""
        try:
            return table.line("aws", self.region, sku, count).usd_per_hour
        except UsageError:
            return None


Lister = Callable[[Place], Iterator[LiveResource]]


def _named(item: dict[str, Any], identifier: str) -> str:
    name = api.tags(item).get("Name", "")
    return f"{identifier} ({name})" if name else identifier


def instances(place: Place) -> Iterator[LiveResource]:
    wanted = [{"Name": f"tag:{STACK_TAG}", "Values": [place.stack]}]
    for reservation in api.pages(place.client("ec2"), "describe_instances", "Reservations", Filters=wanted):
        for item in reservation["Instances"]:
            state = item["State"]["Name"]
            if state != "terminated" and place.is_of_stack(item):
                kind = item["InstanceType"]
                sku = f"{kind}/spot" if item.get("InstanceLifecycle") == "spot" else kind
                runs = state in ("pending", "running")
                what = f"{_named(item, item['InstanceId'])} {kind} {state}"
                price = place.price(sku) if runs else 0.0
                yield place.live("instance", what, item["InstanceId"], usd_per_hour=price, tags=api.tags(item))


def spot_requests(place: Place) -> Iterator[LiveResource]:
    for item in place.of_ec2("describe_spot_instance_requests", "SpotInstanceRequests"):
        # An active request belongs to its instance; an open one may still become an instance.
        if item["State"] == "open":
            name = item["SpotInstanceRequestId"]
            yield place.live("spot request", name, name, tags=api.tags(item))


def capacity_reservations(place: Place) -> Iterator[LiveResource]:
    """Unused reserved capacity costs as much as the machines would."""
    for item in place.of_ec2("describe_capacity_reservations", "CapacityReservations"):
        if item["State"] in ("active", "pending"):
            unused, name = item["AvailableInstanceCount"], item["CapacityReservationId"]
            what = f"{name} {item['InstanceType']}, {unused} of {item['TotalInstanceCount']} unused"
            price = place.price(item["InstanceType"], unused) if unused else 0.0
            yield place.live("capacity reservation", what, name, usd_per_hour=price, tags=api.tags(item))


def volumes(place: Place) -> Iterator[LiveResource]:
    for item in place.of_ec2("describe_volumes", "Volumes"):
        if item["State"] in ("deleting", "deleted"):
            continue
        attached = [entry["InstanceId"] for entry in item.get("Attachments", []) if "InstanceId" in entry]
        price = place.price("gp3-gb-month", item["Size"]) if item.get("VolumeType") == "gp3" else None
        what = f"{_named(item, item['VolumeId'])} {item['Size']} GB {item['State']}"
        name = item["VolumeId"]
        yield place.live("volume", what, attached[0] if attached else name, name, price, tags=api.tags(item))


def images(place: Place) -> Iterator[LiveResource]:
    for item in place.of_ec2("describe_images", "Images", Owners=["self"]):
        name = item["ImageId"]
        yield place.live("image", f"{name} ({item.get('Name', '')})", name, tags=api.tags(item))


def snapshots(place: Place) -> Iterator[LiveResource]:
    """Those with the tag, and those of an image with the tag: EC2 makes them without tags."""
    of_image = {
        mapping["Ebs"]["SnapshotId"]: image
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
        image = of_image.get(name)
        tags = api.tags(item if place.is_of_stack(item) or image is None else image)
        what, owner = f"{_named(item, name)} of {size} GB", image["ImageId"] if image else name
        yield place.live("snapshot", what, owner, name, price, tags=tags)


def addresses(place: Place) -> Iterator[LiveResource]:
    for item in place.of_ec2("describe_addresses", "Addresses"):
        price = place.price("public-ipv4")
        yield place.live("address", item["PublicIp"], item["AllocationId"], usd_per_hour=price, tags=api.tags(item))


def nat_gateways(place: Place) -> Iterator[LiveResource]:
    for item in place.of_ec2("describe_nat_gateways", "NatGateways", argument="Filter"):
        if item["State"] != "deleted":
            what = f"{_named(item, item['NatGatewayId'])} {item['State']}"
            price = place.price("nat-gateway")
            yield place.live("NAT gateway", what, item["NatGatewayId"], usd_per_hour=price, tags=api.tags(item))


def interfaces(place: Place) -> Iterator[LiveResource]:
    """Those with the tag, and unattached ones in the stack's VPC: they would block its deletion."""
    found = place.of_ec2("describe_network_interfaces", "NetworkInterfaces")
    own = {item["VpcId"] for item in place.of_ec2("describe_vpcs", "Vpcs") if not place.claim.whose(api.tags(item))}
    for network in sorted(own):
        wanted = [{"Name": "vpc-id", "Values": [network]}]
        found += api.pages(place.client("ec2"), "describe_network_interfaces", "NetworkInterfaces", Filters=wanted)
    for item in {entry["NetworkInterfaceId"]: entry for entry in found}.values():
        of_instance = "InstanceId" in item.get("Attachment", {})
        if not of_instance and item.get("InterfaceType", "interface") not in ("nat_gateway", "natGateway"):
            name = item["NetworkInterfaceId"]
            if place.is_of_stack(item):
                yield place.live("network interface", name, name, tags=api.tags(item))
            elif item.get("VpcId") in own:
                yield LiveResource(
                    "network interface", f"{name}, in the stack's network without its tag", name, ours=False
                )


def free(kind: str, operation: str, key: str, identifier: str, *, argument: str = "Filters") -> Lister:
    """A lister for an EC2 kind that costs nothing and is described by its id and name alone."""

    def lister(place: Place) -> Iterator[LiveResource]:
        for item in place.of_ec2(operation, key, argument=argument):
            if item.get("State") not in ("deleted", "deleting"):
                yield place.live(kind, _named(item, item[identifier]), item[identifier], tags=api.tags(item))

    return lister


def security_groups(place: Place) -> Iterator[LiveResource]:
    """All but the VPC's `default`, which cannot be deleted and goes with the VPC."""
    for item in place.of_ec2("describe_security_groups", "SecurityGroups"):
        if item["GroupName"] != "default":
            name = item["GroupId"]
            yield place.live("security group", _named(item, name), name, tags=api.tags(item))


def buckets(place: Place) -> Iterator[LiveResource]:
    client = place.client("s3")
    for item in api.pages(client, "list_buckets", "Buckets", Prefix=f"trainyard-{place.stack}"):
        name = item["Name"]
        tags = bucket_contents.tags(client, name) if place.may_name(name) else {}
        if place.claim.is_of_stack(tags):
            # Do not measure another owner's bucket: we may lack the rights, and it is not ours to count.
            held = bucket_contents.Held(0, 0) if place.claim.whose(tags) else bucket_contents.measure(client, name)
            price = place.price("s3-gb-month", held.bytes / 1e9) if held.bytes else 0.0
            yield place.live("bucket", name, name, usd_per_hour=price, tags=tags, holds=held.said())


def roles(place: Place) -> Iterator[LiveResource]:
    client = place.client("iam")
    names = [item["RoleName"] for item in api.pages(client, "list_roles", "Roles")]
    yield from place.by_name("role", names, lambda name: api.tags(client.list_role_tags(RoleName=name)))


def instance_profiles(place: Place) -> Iterator[LiveResource]:
    client = place.client("iam")

    def tags(name: str) -> dict[str, str]:
        return api.tags(client.get_instance_profile(InstanceProfileName=name)["InstanceProfile"])

    listed = api.pages(client, "list_instance_profiles", "InstanceProfiles")
    yield from place.by_name("instance profile", [item["InstanceProfileName"] for item in listed], tags)


def budgets(place: Place) -> Iterator[LiveResource]:
    client = place.client("budgets")

    def tags(name: str) -> dict[str, str]:
        arn = f"arn:{place.partition}:budgets::{place.account}:budget/{name}"
        return api.tags({"Tags": client.list_tags_for_resource(ResourceARN=arn).get("ResourceTags")})

    listed = api.pages(client, "describe_budgets", "Budgets", AccountId=place.account)
    yield from place.by_name("budget", [item["BudgetName"] for item in listed], tags, owner=f"{place.account}:")


def log_groups(place: Place) -> Iterator[LiveResource]:
    client = place.client("logs")
    for item in api.pages(client, "describe_log_groups", "logGroups"):
        name, arn = item["logGroupName"], item["arn"].removesuffix(":*")
        if place.may_name(name):
            tags = client.list_tags_for_resource(resourceArn=arn)["tags"]
            if place.claim.is_of_stack(tags):
                price = None if item.get("storedBytes") else 0.0
                yield place.live("log group", name, name, usd_per_hour=price, tags=tags)


# kind -> (its lister, the ARN resource types that it covers: service:type)
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
"""In the order of removal."""
GLOBAL = ("bucket", "instance profile", "role", "budget")
"""Kinds that are global in an account: any region lists them."""
NAMED = {
    "placement group": "arn:{partition}:ec2:{region}:{account}:placement-group/{name}",
    "key pair": "arn:{partition}:ec2:{region}:{account}:key-pair/{name}",
    "log group": "arn:{partition}:logs:{region}:{account}:log-group:{name}",
}
"""Kinds whose id in the state is a name, which two regions may both have; and the form of their ARN."""
