"""Who may do what: IAM policies and roles, and Azure's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.policy.rule import Props, Resource, Rule, items, whole
from infra.policy.unknown import known

ROLE = "aws:iam/role:Role"
ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
POLICY = "aws:iam/policy:Policy"
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
ASSIGNMENT = "azure-native:authorization:RoleAssignment"
DEFINITION = "azure-native:authorization:RoleDefinition"

TAKES_NO_RESOURCE = (
    *("ec2:Describe", "ssm:DescribeInstanceInformation", "sts:GetCallerIdentity", "logs:DescribeLogGroups"),
    *("ssmmessages:", "ec2messages:", "ssm:UpdateInstanceInformation"),
)
"""Actions that AWS grants on * only (Service Authorization Reference): they list, or are an agent's own messages."""
ONLY_WITH_A_CONDITION = {"cloudwatch:PutMetricData": "cloudwatch:namespace"}
"""Actions that AWS grants on * only, and the key of the condition that bounds each."""
TOO_MUCH = ("AdministratorAccess", "PowerUserAccess", "IAMFullAccess")
READS_PARAMETERS = (
    *("AmazonSSMManagedInstanceCore", "AmazonSSMManagedEC2InstanceDefaultPolicy", "AmazonEC2RoleforSSM"),
    *("AmazonSSMReadOnlyAccess", "SecretsManagerReadWrite", "ReadOnlyAccess"),
)
"""AWS's policies with which a machine reads every parameter, document or secret of the account."""
FOR_ITS_OWN_ACCOUNT = ("ec2.amazonaws.com", "ec2.amazonaws.com.cn")
"""Services that only ever hand a role to the account's own machines."""
PRIVILEGED = {
    # https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/privileged
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": "Owner",
    "b24988ac-6180-42a0-ab88-20f7382dd24c": "Contributor",
    "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9": "User Access Administrator",
    "f58310d9-a9f6-439a-9e8d-f62e7b41a168": "Role Based Access Control Administrator",
}


PARTS_OF_ONE = (
    re.compile(r"[^*?]+"),
    re.compile(r"arn:[a-z-]+:s3:::[^*?/]+/[^?]*"),  # objects of one bucket
    re.compile(r"arn:[a-z-]+:logs:[^*?]*:log-group:[^*?]+:\*"),  # streams of one group
)


@dataclass(frozen=True)
class Statement:
    """One statement of an IAM policy; what may be one or many is many here."""

    effect: str
    principals: tuple[str, ...]
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    condition: dict[str, Any]
    negated: bool
    """It says NotAction, NotResource or NotPrincipal: all but."""


def statements(policy: Any) -> Iterator[Statement]:
    """The statements of a policy document, given as text or as a mapping. Raises UndecidedError where it is unknown."""
    if policy is None:
        return
    document = known(policy)
    document = json.loads(document) if isinstance(document, str) else document
    for entry in _several(document["Statement"]):
        yield Statement(
            effect=entry["Effect"],
            principals=tuple(_principals(entry.get("Principal"))),
            actions=tuple(_several(entry.get("Action"))),
            resources=tuple(_several(entry.get("Resource"))),
            condition=entry.get("Condition", {}),
            negated=any(f"Not{key}" in entry for key in ("Action", "Resource", "Principal")),
        )


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _principals(value: Any) -> Iterator[str]:
    """`*`, or `Service:ec2.amazonaws.com`, `AWS:arn...`; everybody is `*` however it is written."""
    if isinstance(value, dict):
        for kind, names in value.items():
            yield from ("*" if name == "*" else f"{kind}:{name}" for name in _several(names))
    else:
        yield from _several(value)


def _of_policy(resource: Resource) -> Iterator[Statement]:
    yield from statements(resource.props.get("policy"))


def _of_role(resource: Resource) -> Iterator[Statement]:
    for inline in items(resource.props, "inlinePolicies"):
        yield from statements(inline.get("policy"))


def _stars(statement: Statement) -> str | None:
    if statement.effect != "Allow":
        return None
    if statement.negated:
        return "a policy must say what it allows, not what it does not (NotAction, NotResource)"
    for action in statement.actions:
        if "*" in action:
            return f"Action {action}: must name each action"
    if all(_needs_no_resource(action, statement) for action in statement.actions):
        return None
    for resource in statement.resources:
        if not _names_something(resource):
            return (
                f"Resource {resource}: must name what it is; a star may stand for the objects of one bucket"
                " or the streams of one log group"
            )
    return None


def _needs_no_resource(action: str, statement: Statement) -> bool:
    """Whether AWS grants the action on * only, and what bounds it instead, if anything does, is there."""
    key = ONLY_WITH_A_CONDITION.get(action)
    if key is None:
        return action.startswith(TAKES_NO_RESOURCE)
    return bool(statement.condition.get("StringEquals", {}).get(key))


def _names_something(resource: str) -> bool:
    """No star, or one that stands for what is inside of something that is named (PARTS_OF_ONE)."""
    return any(form.fullmatch(resource) for form in PARTS_OF_ONE)


def _trust(resource: Resource) -> Iterator[Statement]:
    yield from statements(resource.props.get("assumeRolePolicy"))


def _trusts_a_service(statement: Statement) -> str | None:
    if statement.effect != "Allow":
        return None
    others = [name for name in statement.principals if not name.startswith("Service:") or "*" in name]
    if others or statement.negated or not statement.principals:
        return f"a role must be for a service only, not for {', '.join(others) or 'whoever is not named'}"
    return None


def _for_us(statement: Statement) -> str | None:
    """Any account can make a service call us: it has to say for whom (the confused deputy)."""
    services = [name.removeprefix("Service:") for name in statement.principals if name.startswith("Service:")]
    others = [name for name in services if name not in FOR_ITS_OWN_ACCOUNT and "*" not in name]
    equal = statement.condition.get("StringEquals", {})
    if statement.effect == "Allow" and others and not equal.get("aws:SourceAccount"):
        return f"{', '.join(others)} works for every account: the role must ask for its own, aws:SourceAccount"
    return None


def _reads_parameters(attachment: Props) -> str | None:
    name = str(attachment.get("policyArn")).rsplit("/", 1)[-1]
    if name in READS_PARAMETERS:
        return f"the policy {name} lets a node read every parameter, document or secret of the account"
    return None


def _managed(attachment: Props) -> str | None:
    return _too_much(str(attachment.get("policyArn")))


def _of_role_managed(resource: Resource) -> Iterator[Props]:
    yield from ({"policyArn": arn} for arn in items(resource.props, "managedPolicyArns"))


def _too_much(arn: str) -> str | None:
    name = arn.rsplit("/", 1)[-1]
    if name in TOO_MUCH or name.endswith("FullAccess"):
        return f"the policy {name} gives a node far more than it needs"
    return None


def _assigned(assignment: Props) -> str | None:
    role = str(assignment.get("roleDefinitionId")).rsplit("/", 1)[-1].lower()
    if role in PRIVILEGED:
        return f"the role {PRIVILEGED[role]} gives a node far more than it needs"
    return None


def _permissions(resource: Resource) -> Iterator[Any]:
    for permission in items(resource.props, "permissions"):
        yield from (*items(permission, "actions"), *items(permission, "dataActions"))


def _azure_star(action: Any) -> str | None:
    return f"action {action}: must name each action" if "*" in str(action) else None


RULES = (
    Rule(
        name="iam-no-stars",
        description="An IAM policy names the actions and the resources that it allows.",
        numbers=(
            *("CKV_AWS_62", "CKV_AWS_63", "CKV_AWS_286", "CKV_AWS_287", "CKV_AWS_288", "CKV_AWS_289", "CKV_AWS_290"),
            *("CKV_AWS_355", "CKV2_AWS_40", "CIS AWS 5.0 1.15"),
        ),
        parts={ROLE_POLICY: _of_policy, POLICY: _of_policy, ROLE: _of_role},
        problem=_stars,
    ),
    Rule(
        name="roles-for-services",
        description="A role can be taken by a service of AWS that is named, and by nobody else.",
        numbers=("CKV_AWS_60", "CKV_AWS_61"),
        parts={ROLE: _trust},
        problem=_trusts_a_service,
    ),
    Rule(
        name="roles-for-this-account",
        description="A service that works for every account may take a role for this account's things only.",
        numbers=("CKV_AWS_61", "CIS AWS 5.0 1.15"),
        parts={ROLE: _trust},
        problem=_for_us,
    ),
    Rule(
        name="no-parameters-of-the-account",
        description="No role reads every parameter, document or secret of the account.",
        numbers=("CKV_AWS_288", "CIS AWS 5.0 1.15"),
        parts={ATTACHMENT: whole, ROLE: _of_role_managed},
        problem=_reads_parameters,
    ),
    Rule(
        name="no-administrators",
        description="No role has an administrator's policy.",
        numbers=("CKV_AWS_274", "CKV2_AWS_56", "CIS AWS 5.0 1.15"),
        parts={ATTACHMENT: whole, ROLE: _of_role_managed},
        problem=_managed,
    ),
    Rule(
        name="no-privileged-roles",
        description="No identity has a privileged role of Azure's.",
        numbers=("CIS Azure 4.0 6.3.3",),
        parts={ASSIGNMENT: whole},
        problem=_assigned,
    ),
    Rule(
        name="role-definitions-no-stars",
        description="A role of our own names the actions that it allows.",
        numbers=("CKV_AZURE_39", "CIS Azure 3.0 2.23"),
        parts={DEFINITION: _permissions},
        problem=_azure_star,
    ),
)
