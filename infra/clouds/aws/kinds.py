"""Every kind of AWS resource that a stack may have, in the order of removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from infra.clouds.aws import api, removal
from infra.clouds.aws.bucket import BUCKET
from infra.clouds.aws.ec2_kinds import EC2_KINDS
from infra.clouds.aws.eks_kinds import EKS_KINDS
from infra.clouds.aws.place import AccountRegion, FoundResource, Item, ResourceKind
from infra.clouds.aws.slurm_kinds import SLURM_KINDS


def _named(
    service: str,
    operation: str,
    key: str,
    name_of: str,
    tags: Callable[[Any, AccountRegion, Item], dict[str, str]],
    price: Callable[[Item], float | None] = lambda _item: 0.0,
) -> Callable[[AccountRegion], Iterator[FoundResource]]:
    """A lister of what AWS cannot list by tag: what has a name that the stack may have given, and its tag."""

    def listed(place: AccountRegion) -> Iterator[FoundResource]:
        client = place.client(service)
        # Budgets belong to an account, also by their ids in the state.
        account = place.account if service == "budgets" else ""
        for item in api.pages(client, operation, key, **({"AccountId": account} if account else {})):
            name = item[name_of]
            if place.may_name(name) and place.claim.is_of_stack(found := tags(client, place, item)):
                yield FoundResource(found, name, f"{account}:{name}" if account else name, usd_per_hour=price(item))

    return listed


def _tags_of_profile(iam: Any, _place: AccountRegion, item: Item) -> dict[str, str]:
    name = item["InstanceProfileName"]
    return api.tags(iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"])


def _tags_of_log_group(logs: Any, _place: AccountRegion, item: Item) -> dict[str, str]:
    return dict(logs.list_tags_for_resource(resourceArn=item["arn"].removesuffix(":*"))["tags"])


def _tags_of_budget(client: Any, place: AccountRegion, item: Item) -> dict[str, str]:
    arn = f"arn:{place.partition}:budgets::{place.account}:budget/{item['BudgetName']}"
    return api.tags({"Tags": client.list_tags_for_resource(ResourceARN=arn).get("ResourceTags")})


def _remove_profile(place: AccountRegion, name: str) -> None:
    iam = place.client("iam")
    for role in iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role["RoleName"])
    removal.call(iam, "delete_instance_profile", InstanceProfileName=name)


def _remove_role(place: AccountRegion, name: str) -> None:
    iam = place.client("iam")
    for policy in api.pages(iam, "list_attached_role_policies", "AttachedPolicies", RoleName=name):
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for inline in api.pages(iam, "list_role_policies", "PolicyNames", RoleName=name):
        iam.delete_role_policy(RoleName=name, PolicyName=inline)
    removal.call(iam, "delete_role", RoleName=name)


def _remove_budget(place: AccountRegion, name: str) -> None:
    account, _, budget = name.partition(":")
    removal.call(place.client("budgets"), "delete_budget", AccountId=account, BudgetName=budget)


_KINDS = (
    *EKS_KINDS,
    *SLURM_KINDS,
    *EC2_KINDS,
    BUCKET,
    ResourceKind(
        "instance profile",
        "iam:instance-profile",
        _named("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName", _tags_of_profile),
        _remove_profile,
        is_global=True,
    ),
    ResourceKind(
        "role",
        "iam:role",
        _named(
            *("iam", "list_roles", "Roles", "RoleName"),
            lambda iam, _place, item: api.tags(iam.list_role_tags(RoleName=item["RoleName"])),
        ),
        _remove_role,
        is_global=True,
    ),
    ResourceKind(
        "log group",
        "logs:log-group",
        _named(
            *("logs", "describe_log_groups", "logGroups", "logGroupName", _tags_of_log_group),
            lambda item: None if item.get("storedBytes") else 0.0,
        ),
        lambda place, name: removal.call(place.client("logs"), "delete_log_group", logGroupName=name),
        arn="arn:{place.partition}:logs:{place.region}:{place.account}:log-group:{name}",
    ),
    ResourceKind(
        "budget",
        "budgets:budget",
        _named("budgets", "describe_budgets", "Budgets", "BudgetName", _tags_of_budget),
        _remove_budget,
        is_global=True,
    ),
)
KINDS: dict[str, ResourceKind] = {kind.name: kind for kind in _KINDS}
