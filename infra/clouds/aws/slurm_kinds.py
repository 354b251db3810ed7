"""The kinds of resources that only a stack with a ParallelCluster has: CloudFormation's stacks, FSx, its policies."""

from __future__ import annotations

import time
from collections.abc import Iterator

from botocore.exceptions import ClientError

from infra.clouds.aws import api, removal
from infra.clouds.aws.lustre import MB_S_PER_TIB, SKU
from infra.clouds.aws.pcluster_config import CLUSTER
from infra.clouds.aws.place import AROUND, AccountRegion, FoundResource, Item, ResourceKind

WAIT_S = 3600.0
"""Seconds for a stack or a file system to go: a cluster's nodes end first."""


def _stacks(place: AccountRegion) -> Iterator[FoundResource]:
    """Root stacks, in the order of removal: the one around a cluster, whose removal has the cluster deleted; the
    cluster's own, if it is still there; the one with the function that does it."""
    listed = api.pages(place.client("cloudformation"), "describe_stacks", "Stacks")
    for item in sorted(listed, key=_turn):
        if not item.get("ParentId") and place.is_of_stack(item):
            what = f"{item['StackName']} {item['StackStatus']}"
            yield FoundResource(api.tags(item), what, item["StackId"])


def _turn(item: Item) -> int:
    name = item["StackName"]
    return 0 if name.endswith(AROUND) else 2 if name.endswith("-pcluster") else 1


def _remove_stack(place: AccountRegion, name: str) -> None:
    client, pace = place.client("cloudformation"), max(1.0, removal.POLL_S)
    removal.call(client, "delete_stack", StackName=name)
    waiter = client.get_waiter("stack_delete_complete")
    waiter.wait(StackName=name, WaiterConfig={"Delay": pace, "MaxAttempts": int(WAIT_S / pace)})


def _file_systems(place: AccountRegion) -> Iterator[FoundResource]:
    for item in api.pages(place.client("fsx"), "describe_file_systems", "FileSystems"):
        if place.is_of_stack(item):
            name, size = item["FileSystemId"], item["StorageCapacity"]
            known = item.get("LustreConfiguration", {}).get("PerUnitStorageThroughput") == MB_S_PER_TIB
            price = place.price(SKU, size) if known else None
            # Without `holds`: what is in it is in the bucket as well.
            yield FoundResource(api.tags(item), f"{name} of {size} GB", name, usd_per_hour=price)


def _remove_file_system(place: AccountRegion, name: str) -> None:
    """Delete a file system, its links to buckets with it, and wait: its interfaces hold the subnet until then."""
    client, end = place.client("fsx"), time.monotonic() + WAIT_S
    removal.call(client, "delete_file_system", FileSystemId=name, LustreConfiguration={"SkipFinalBackup": True})
    while any(item["FileSystemId"] == name for item in api.pages(client, "describe_file_systems", "FileSystems")):
        if time.monotonic() > end:
            raise ClientError({"Error": {"Code": "Timeout", "Message": "it is still there"}}, "DeleteFileSystem")
        time.sleep(removal.POLL_S)


def _policies(place: AccountRegion) -> Iterator[FoundResource]:
    iam = place.client("iam")
    for item in api.pages(iam, "list_policies", "Policies", Scope="Local"):
        if place.may_name(item["PolicyName"]):
            tags = api.tags(iam.list_policy_tags(PolicyArn=item["Arn"]))
            if place.claim.is_of_stack(tags):
                yield FoundResource(tags, item["PolicyName"], item["Arn"])


def _remove_policy(place: AccountRegion, arn: str) -> None:
    iam = place.client("iam")
    for role in api.pages(iam, "list_entities_for_policy", "PolicyRoles", PolicyArn=arn):
        iam.detach_role_policy(RoleName=role["RoleName"], PolicyArn=arn)
    for version in api.pages(iam, "list_policy_versions", "Versions", PolicyArn=arn):
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=arn, VersionId=version["VersionId"])
    removal.call(iam, "delete_policy", PolicyArn=arn)


SLURM_KINDS = (
    ResourceKind("CloudFormation stack", "cloudformation:stack", _stacks, _remove_stack, only=CLUSTER),
    ResourceKind("file system", "fsx:file-system fsx:association", _file_systems, _remove_file_system, only=CLUSTER),
    ResourceKind("policy", "iam:policy", _policies, _remove_policy, is_global=True, only=CLUSTER),
)
"""In the order of removal, before EC2's: their machines and interfaces hold the network."""
