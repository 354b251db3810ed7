"""All rules, and their application to the declared resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from infra.policy import access, companion_rules, leaks, openings, property_rules, tags
from infra.policy.rule import DeclaredResource, PolicyFinding, PolicyRule, Stack, StackRule

NAME = "trainyard"
RULES: tuple[PolicyRule, ...] = (*property_rules.RULES, *openings.RULES, *access.RULES, *leaks.RULES, *tags.RULES)
STACK_RULES: tuple[StackRule, ...] = companion_rules.STACK_RULES
NOT_APPLIED = {
    "CKV_AWS_88, CKV_AWS_130, CKV_AZURE_119": "the head has a public address: that is how one logs in",
    "CKV_AWS_382": "nodes fetch packages and data: what goes out is open, what comes in is not",
    "CKV_AWS_126": "detailed monitoring costs, and the training's own log says more",
    "CKV_AWS_18, CKV_AWS_144, CKV2_AWS_62": "the bucket holds what can be made again",
    "CKV_AWS_145, CKV_AWS_158, CKV2_AZURE_1, CKV_AZURE_93": "the providers' keys: own ones cost, and outlive the stack",
    "CKV_AZURE_59, CKV2_AZURE_33": "the operator's own machine brings the data, from outside of the network",
}
"""Checkov checks that our resources fail on purpose, and why."""


def stack(resources: Sequence[DeclaredResource], settings: Mapping[str, str]) -> Stack:
    """The declared resources, with the settings (keys of Pulumi.yaml, as text) that rules depend on."""
    named = tuple(settings[key] for key in ("image", "baseImage") if settings.get(key))
    return Stack(resources, flow_logs=settings.get("flowLogs") == "true", images=named)


def judge(stack: Stack) -> Iterator[PolicyFinding]:
    """The findings of all rules about all resources."""
    for resource in stack.resources:
        yield from of_resource(resource)
    for rule in STACK_RULES:
        yield from rule.judge(stack)


def of_resource(resource: DeclaredResource) -> Iterator[PolicyFinding]:
    """The findings of the rules that look at one resource."""
    return (finding for rule in RULES for finding in rule.judge(resource))
