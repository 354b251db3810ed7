"""Rules about rights: IAM policies and roles, bucket policies, and Azure's roles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.policy.conditions import at, matches, must, several, values
from infra.policy.resource_types import ASSIGNMENT, ATTACHMENT, BUCKET_POLICY, DEFINITION, POLICY, ROLE, ROLE_POLICY
from infra.policy.rule import Parts, PolicyRule, Problem
from infra.policy.unknown import known

TAKES_NO_RESOURCE = (
    *("ec2:Describe", "ssm:DescribeInstanceInformation", "sts:GetCallerIdentity", "logs:DescribeLogGroups"),
    *("ssmmessages:", "ec2messages:", "ssm:UpdateInstanceInformation"),
)
"""Actions that AWS grants on * only (Service Authorization Reference): listings, and an agent's own messages."""
ONLY_WITH_A_CONDITION = {"cloudwatch:PutMetricData": "cloudwatch:namespace"}
"""Actions that AWS grants on * only -> the condition key that must restrict each."""
TOO_MUCH = ("AdministratorAccess", "PowerUserAccess", "IAMFullAccess")
READS_PARAMETERS = (
    *("AmazonSSMManagedInstanceCore", "AmazonSSMManagedEC2InstanceDefaultPolicy", "AmazonEC2RoleforSSM"),
    *("AmazonSSMReadOnlyAccess", "SecretsManagerReadWrite", "ReadOnlyAccess"),
)
"""AWS's own policies that let a machine read every parameter, document or secret of the account."""
FOR_ITS_OWN_ACCOUNT = ("ec2.amazonaws.com", "ec2.amazonaws.com.cn")
"""Services that pass a role only to machines of the role's own account."""
PRIVILEGED = {
    # https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/privileged
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": "Owner",
    "b24988ac-6180-42a0-ab88-20f7382dd24c": "Contributor",
    "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9": "User Access Administrator",
    "f58310d9-a9f6-439a-9e8d-f62e7b41a168": "Role Based Access Control Administrator",
}
NAMED_RESOURCES = (
    re.compile(r"[^*?]+"),
    re.compile(r"arn:[a-z-]+:s3:::[^*?/]+/[^?]*"),  # objects of one bucket
    re.compile(r"arn:[a-z-]+:logs:[^*?]*:log-group:[^*?]+:\*"),  # streams of one group
)
"""Resources that a statement may name: without *, or with * only for the content of a named resource."""


@dataclass(frozen=True)
class Statement:
    """A statement of an IAM policy. Fields that AWS allows as a text or a list are always tuples here."""

    effect: str
    principals: tuple[str, ...]
    """`*`, `Service:ec2.amazonaws.com` or `AWS:arn...`; all of AWS's ways to write everybody become `*`."""
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    condition: dict[str, Any]
    negated: bool
    """Whether it has NotAction, NotResource or NotPrincipal."""


def statements(policy: Any) -> Iterator[Statement]:
    """The statements of a policy document, given as text or mapping. Raises UndecidedError if it is unknown."""
    if policy is None:
        return
    document = known(policy)
    document = json.loads(document) if isinstance(document, str) else document
    for entry in several(document["Statement"]):
        yield Statement(
            effect=entry["Effect"],
            principals=tuple(_principals(entry.get("Principal"))),
            actions=tuple(several(entry.get("Action"))),
            resources=tuple(several(entry.get("Resource"))),
            condition=entry.get("Condition", {}),
            negated=any(f"Not{key}" in entry for key in ("Action", "Resource", "Principal")),
        )


def _principals(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for kind, names in value.items():
            yield from ("*" if name == "*" else f"{kind}:{name}" for name in several(names))
    else:
        yield from several(value)


def _allowed_by(path: str) -> Parts:
    """The statements that allow something, of the policy documents at a path of a resource."""
    return lambda resource: (
        one for policy in values(resource.props, path) for one in statements(policy) if one.effect == "Allow"
    )


def denies_without_tls(statement: Statement) -> bool:
    """Whether a bucket policy's statement denies all access without TLS, to the bucket and its objects."""
    condition = statement.condition.get("Bool", {}).get("aws:SecureTransport")
    objects = [resource.endswith("/*") for resource in statement.resources]
    return (
        statement.effect == "Deny"
        and "*" in statement.principals
        and ("s3:*" in statement.actions or "*" in statement.actions)
        and str(condition).lower() == "false"
        and (("*" in statement.resources) or (True in objects and False in objects))
    )


def _public(statement: Statement) -> str | None:
    public = "*" in statement.principals
    return "a bucket's policy must not allow anything to everybody (Principal *)" if public else None


def _stars(statement: Statement) -> str | None:
    if statement.negated:
        return "a policy must list what it allows, not what it does not allow (NotAction, NotResource)"
    for action in statement.actions:
        if "*" in action:
            return f"Action {action}: must name each action"
    if all(_needs_no_resource(action, statement) for action in statement.actions):
        return None
    for resource in statement.resources:
        if not any(form.fullmatch(resource) for form in NAMED_RESOURCES):
            return (
                f"Resource {resource}: * may stand only for the objects of one bucket or the streams of one log group"
            )
    return None


def _needs_no_resource(action: str, statement: Statement) -> bool:
    """Whether AWS grants the action on * only, and the statement has the condition that it needs, if any."""
    if key := ONLY_WITH_A_CONDITION.get(action):
        return bool(statement.condition.get("StringEquals", {}).get(key))
    return action.startswith(TAKES_NO_RESOURCE)


def _trusts_a_service(statement: Statement) -> str | None:
    others = [name for name in statement.principals if not name.startswith("Service:") or "*" in name]
    if others or statement.negated or not statement.principals:
        return f"a role must be for a service only, not for {', '.join(others) or 'principals that are not named'}"
    return None


def _for_this_account(statement: Statement) -> str | None:
    """A service may act for any account, so the role's trust must name ours (the confused deputy problem)."""
    services = [name.removeprefix("Service:") for name in statement.principals if name.startswith("Service:")]
    others = [name for name in services if name not in FOR_ITS_OWN_ACCOUNT and "*" not in name]
    equal = statement.condition.get("StringEquals", {})
    if others and not equal.get("aws:SourceAccount"):
        return f"{', '.join(others)} acts for every account: the role must require its own (aws:SourceAccount)"
    return None


def _never(forbidden: Callable[[str], str | bool], message: str) -> Problem:
    """A check for a forbidden id: `forbidden` gets its last part, and returns whether it is, or its name for the
    message."""

    def problem(identifier: Any) -> str | None:
        name = str(identifier).rsplit("/", 1)[-1]
        found = forbidden(name)
        return message.format(found if isinstance(found, str) else name) if found else None

    return problem


MORE = "{} gives a node far more than it needs"
_POLICIES = {ROLE_POLICY: _allowed_by("policy"), POLICY: _allowed_by("policy")}
_TRUST = {ROLE: _allowed_by("assumeRolePolicy")}
_MANAGED = {ATTACHMENT: at("policyArn"), ROLE: at("managedPolicyArns[]")}

RULES = (
    PolicyRule(
        "iam-no-stars",
        "An IAM policy names the actions and the resources that it allows "
        "(CKV_AWS_62, CKV_AWS_63, CKV_AWS_286, CKV_AWS_287, CKV_AWS_288, CKV_AWS_289, CKV_AWS_290, CKV_AWS_355, "
        "CKV2_AWS_40, CIS AWS 5.0 1.15).",
        {**_POLICIES, ROLE: _allowed_by("inlinePolicies[].policy")},
        _stars,
    ),
    PolicyRule(
        "bucket-policy-not-public",
        "No bucket's policy allows anything to everybody (CKV_AWS_70).",
        {BUCKET_POLICY: _allowed_by("policy")},
        _public,
    ),
    PolicyRule(
        "roles-for-services",
        "A role can be taken by a service of AWS that is named, and by nobody else (CKV_AWS_60, CKV_AWS_61).",
        _TRUST,
        _trusts_a_service,
    ),
    PolicyRule(
        "roles-for-this-account",
        "A service that works for every account may take a role for this account's resources only "
        "(CKV_AWS_61, CIS AWS 5.0 1.15).",
        _TRUST,
        _for_this_account,
    ),
    PolicyRule(
        "no-parameters-of-the-account",
        "No role reads every parameter, document or secret of the account (CKV_AWS_288, CIS AWS 5.0 1.15).",
        _MANAGED,
        _never(READS_PARAMETERS.__contains__, "{} lets a node read every parameter, document or secret of the account"),
    ),
    PolicyRule(
        "no-administrators",
        "No role has an administrator's policy (CKV_AWS_274, CKV2_AWS_56, CIS AWS 5.0 1.15).",
        _MANAGED,
        _never(lambda name: name in TOO_MUCH or name.endswith("FullAccess"), f"the policy {MORE}"),
    ),
    PolicyRule(
        "no-privileged-roles",
        "No identity has a privileged role of Azure's (CIS Azure 4.0 6.3.3).",
        {ASSIGNMENT: at("roleDefinitionId")},
        _never(lambda name: PRIVILEGED.get(name.lower(), ""), f"the role {MORE}"),
    ),
    PolicyRule(
        "role-definitions-no-stars",
        "A role of our own names the actions that it allows (CKV_AZURE_39, CIS Azure 3.0 2.23).",
        {DEFINITION: at("permissions[].actions[]", "permissions[].dataActions[]")},
        must("", matches(r"[^*]*"), "action {value}: must name each action"),
    ),
)
