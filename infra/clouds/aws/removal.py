"""Removes one resource of each kind from AWS. One that is already gone is no error."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from infra.clouds.aws import api, bucket_contents
from infra.clouds.aws.listing import Place
from infra.clouds.live_resource import LiveResource
from infra.clouds.naming import ID_TAG, OWNER_TAG, STACK_TAG

WAIT_S = 600.0
"""Seconds to wait for what is still in use by a resource that is ending, such as a disk or an address."""
POLL_S = 5.0
_HELD = (
    *("DependencyViolation", "VolumeInUse", "IncorrectState", "InvalidIPAddress.InUse", "InvalidAddress.InUse"),
    *("InvalidSnapshot.InUse", "InvalidPlacementGroup.InUse", "DeleteConflict"),
    *("ResourceInUse", "OperationAborted", "InvalidNetworkInterface.InUse"),
)
"""Error codes that mean "not yet"."""
_HELD_ADDRESS = (*_HELD, "AuthFailure")
"""EC2 answers AuthFailure for an address that a NAT gateway still holds."""

Remover = Callable[[Place, LiveResource], None]


def is_gone(error: Exception) -> bool:
    """Whether the error says that the resource does not exist."""
    word = api.code(error)
    gone = ("NoSuchEntity", "NoSuchBucket", "InvalidPlacementGroup.Unknown", "InvalidAMIID.Unavailable")
    return "NotFound" in word or word in (*gone, "Gateway.NotAttached")


def until_free(remove: Callable[[], object], held: Collection[str] = _HELD) -> None:
    """Retry `remove` until nothing holds the resource any more. One that is already gone is no error."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            remove()
        except api.FAILURES as error:
            if is_gone(error):
                return
            if api.code(error) not in held or time.monotonic() > end:
                raise
            time.sleep(POLL_S)
        else:
            return


def end_instances(place: Place, live_resources: list[LiveResource]) -> None:
    """Terminate all at once, and wait, because disks, addresses and security groups become free only then."""
    ec2, identifiers = place.client("ec2"), [live.owner for live in live_resources]
    for identifier in identifiers:
        until_free(partial(ec2.terminate_instances, InstanceIds=[identifier]))
    if identifiers:
        wanted = [{"Name": "instance-id", "Values": identifiers}]
        ec2.get_waiter("instance_terminated").wait(Filters=wanted, WaiterConfig=_waiting())


def _waiting() -> dict[str, int]:
    return {"Delay": max(1, int(POLL_S)), "MaxAttempts": int(WAIT_S / max(1.0, POLL_S))}


def _complain(answer: Any, operation: str) -> None:
    """Raise errors that some calls return in a successful response."""
    for failed in (answer or {}).get("Unsuccessful") or []:
        raise ClientError({"Error": failed["Error"]}, operation)


def _ec2(operation: str, argument: str, *, many: bool = False) -> Remover:
    """A remover for a kind that a single EC2 call removes."""

    def remove(place: Place, live: LiveResource) -> None:
        value = live.id or live.owner
        call = getattr(place.client("ec2"), operation)
        until_free(lambda: _complain(call(**{argument: [value] if many else value}), operation))

    return remove


def _image(place: Place, live: LiveResource) -> None:
    """Deregister an image. First copy its tags to its snapshots, so that a repeated sweep still finds them."""
    ec2 = place.client("ec2")
    for image in api.pages(ec2, "describe_images", "Images", Filters=[{"Name": "image-id", "Values": [live.owner]}]):
        mapped = [entry.get("Ebs", {}).get("SnapshotId") for entry in image.get("BlockDeviceMappings", [])]
        snapshots = [name for name in mapped if name]
        if snapshots:
            ours = {key: value for key, value in api.tags(image).items() if key in (STACK_TAG, ID_TAG, OWNER_TAG)}
            ec2.create_tags(Resources=snapshots, Tags=[{"Key": key, "Value": ours[key]} for key in sorted(ours)])
    until_free(lambda: ec2.deregister_image(ImageId=live.owner))


def _nat_gateway(place: Place, live: LiveResource) -> None:
    """Delete a NAT gateway and wait, because its address and its subnet become free only then."""
    ec2 = place.client("ec2")
    until_free(lambda: ec2.delete_nat_gateway(NatGatewayId=live.owner))
    ec2.get_waiter("nat_gateway_deleted").wait(NatGatewayIds=[live.owner], WaiterConfig=_waiting())


def _address(place: Place, live: LiveResource) -> None:
    ec2 = place.client("ec2")
    wanted = [{"Name": "allocation-id", "Values": [live.owner]}]
    for item in ec2.describe_addresses(Filters=wanted)["Addresses"]:
        if item.get("AssociationId"):
            name = item["AssociationId"]
            until_free(partial(ec2.disassociate_address, AssociationId=name), _HELD_ADDRESS)
    until_free(lambda: ec2.release_address(AllocationId=live.owner), _HELD_ADDRESS)


def free_groups(place: Place, live_resources: list[LiveResource]) -> None:
    """Remove all rules from all groups: two groups that refer to each other could not be deleted otherwise."""
    ec2 = place.client("ec2")
    wanted = [{"Name": "group-id", "Values": [live.owner for live in live_resources]}]
    for group in api.pages(ec2, "describe_security_groups", "SecurityGroups", Filters=wanted) if live_resources else ():
        if group.get("IpPermissions"):
            ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=group["IpPermissions"])
        if group.get("IpPermissionsEgress"):
            ec2.revoke_security_group_egress(GroupId=group["GroupId"], IpPermissions=group["IpPermissionsEgress"])


def _route_table(place: Place, live: LiveResource) -> None:
    ec2 = place.client("ec2")
    wanted = [{"Name": "route-table-id", "Values": [live.owner]}]
    for table in api.pages(ec2, "describe_route_tables", "RouteTables", Filters=wanted):
        for entry in table.get("Associations", []):
            if entry.get("Main"):
                return  # it is deleted with its VPC
            name = entry["RouteTableAssociationId"]
            until_free(partial(ec2.disassociate_route_table, AssociationId=name))
    until_free(lambda: ec2.delete_route_table(RouteTableId=live.owner))


def _internet_gateway(place: Place, live: LiveResource) -> None:
    ec2 = place.client("ec2")
    wanted = [{"Name": "internet-gateway-id", "Values": [live.owner]}]
    for gateway in api.pages(ec2, "describe_internet_gateways", "InternetGateways", Filters=wanted):
        for entry in gateway.get("Attachments", []):
            until_free(partial(ec2.detach_internet_gateway, InternetGatewayId=live.owner, VpcId=entry["VpcId"]))
    until_free(lambda: ec2.delete_internet_gateway(InternetGatewayId=live.owner))


def _bucket(place: Place, live: LiveResource) -> None:
    s3 = place.client("s3")
    until_free(lambda: bucket_contents.empty(s3, live.owner))
    until_free(lambda: s3.delete_bucket(Bucket=live.owner))


def _instance_profile(place: Place, live: LiveResource) -> None:
    iam = place.client("iam")
    profile = iam.get_instance_profile(InstanceProfileName=live.owner)["InstanceProfile"]
    for role in profile["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=live.owner, RoleName=role["RoleName"])
    until_free(lambda: iam.delete_instance_profile(InstanceProfileName=live.owner))


def _role(place: Place, live: LiveResource) -> None:
    iam = place.client("iam")
    for policy in api.pages(iam, "list_attached_role_policies", "AttachedPolicies", RoleName=live.owner):
        iam.detach_role_policy(RoleName=live.owner, PolicyArn=policy["PolicyArn"])
    inline: list[Any] = api.pages(iam, "list_role_policies", "PolicyNames", RoleName=live.owner)
    for name in inline:
        iam.delete_role_policy(RoleName=live.owner, PolicyName=name)
    until_free(lambda: iam.delete_role(RoleName=live.owner))


def _log_group(place: Place, live: LiveResource) -> None:
    until_free(lambda: place.client("logs").delete_log_group(logGroupName=live.owner))


def _budget(place: Place, live: LiveResource) -> None:
    account, _, name = live.owner.partition(":")
    until_free(lambda: place.client("budgets").delete_budget(AccountId=account, BudgetName=name))


BEFORE: dict[str, Callable[[Place, list[LiveResource]], None]] = {
    "instance": end_instances,
    "security group": free_groups,
}
"""Runs for all resources of a kind at once, before they are removed one by one."""

REMOVERS: dict[str, Remover] = {
    "instance": lambda _place, _thing: None,  # already terminated, all together (BEFORE)
    "spot request": _ec2("cancel_spot_instance_requests", "SpotInstanceRequestIds", many=True),
    "image": _image,
    "capacity reservation": _ec2("cancel_capacity_reservation", "CapacityReservationId"),
    "snapshot": _ec2("delete_snapshot", "SnapshotId"),
    "volume": _ec2("delete_volume", "VolumeId"),
    "NAT gateway": _nat_gateway,
    "address": _address,
    "VPC endpoint": _ec2("delete_vpc_endpoints", "VpcEndpointIds", many=True),
    "flow log": _ec2("delete_flow_logs", "FlowLogIds", many=True),
    "network interface": _ec2("delete_network_interface", "NetworkInterfaceId"),
    "launch template": _ec2("delete_launch_template", "LaunchTemplateId"),
    "placement group": _ec2("delete_placement_group", "GroupName"),
    "key pair": _ec2("delete_key_pair", "KeyName"),
    "security group": _ec2("delete_security_group", "GroupId"),
    "subnet": _ec2("delete_subnet", "SubnetId"),
    "route table": _route_table,
    "internet gateway": _internet_gateway,
    "VPC": _ec2("delete_vpc", "VpcId"),
    "bucket": _bucket,
    "instance profile": _instance_profile,
    "role": _role,
    "log group": _log_group,
    "budget": _budget,
}
