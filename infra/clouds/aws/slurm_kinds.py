"""The kinds of resources of a stack with a ParallelCluster: CloudFormation's stacks, a file system, its policies."""

from __future__ import annotations

from collections.abc import Iterator

from infra.clouds.aws import api, removal
from infra.clouds.aws.lustre_kind import FILE_SYSTEM
from infra.clouds.aws.pcluster_config import CLUSTER
from infra.clouds.aws.place import AROUND, AccountRegion, FoundResource, Item, ResourceKind

WAIT_S = 3600.0
"""Seconds for a stack to go: a cluster's nodes end first."""


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
    ResourceKind("CloudFormation stack", "cloudformation:stack", _stacks, _remove_stack, only=(CLUSTER,)),
    FILE_SYSTEM,
    ResourceKind("policy", "iam:policy", _policies, _remove_policy, is_global=True, only=(CLUSTER,)),
)
"""In the order of removal, before EC2's: their machines and interfaces hold the network."""
