"""Networks: descriptions of rules, the default group, flow logs, a firewall on every subnet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from infra.policy.openings import GROUP, GROUP_RULE, INGRESS
from infra.policy.rule import Props, Resource, Rule, Stack, StackRule, block, is_on, items, same, whole

EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
VPC = "aws:ec2/vpc:Vpc"
DEFAULT_GROUP = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
FLOW_LOG = "aws:ec2/flowLog:FlowLog"
VNET = "azure-native:network:VirtualNetwork"
SUBNET = "azure-native:network:Subnet"
VNET_FLOW_LOG = "azure-native:network:FlowLog"
SAYS_NOTHING = ("", "Managed by Pulumi", "Managed by Terraform")
"""No description, and what the providers write in its place."""


def _with_inline_rules(resource: Resource) -> Iterator[Props]:
    yield resource.props
    yield from (*items(resource.props, "ingress"), *items(resource.props, "egress"))


def _described(rule: Props) -> str | None:
    description = rule.get("description")
    if description is None or str(description).strip() in SAYS_NOTHING:
        return "must have a description that says what it is for"
    return None


def _subnets(resource: Resource) -> Iterator[Props]:
    yield from items(resource.props, "subnets")


def _behind_a_firewall(subnet: Props) -> str | None:
    group = block(subnet, "networkSecurityGroup")
    return None if group.get("id") is not None else "a subnet must have a networkSecurityGroup"


def _default_groups(stack: Stack) -> Iterator[tuple[Resource, list[Resource]]]:
    for vpc in stack.of(VPC):
        yield vpc, stack.beside(vpc, DEFAULT_GROUP, "vpcId")


def _closed(groups: Sequence[Resource]) -> str | None:
    if not groups:
        return (
            "the network's default group must be declared (ec2.DefaultSecurityGroup), so that it lets nothing through"
        )
    if any(items(group.props, "ingress") or items(group.props, "egress") for group in groups):
        return "the network's default group must let nothing through: no ingress, no egress"
    return None


def _logs(stack: Stack) -> Iterator[tuple[Resource, Any]]:
    """Where the settings ask for flow logs: each network with its logs."""
    if not stack.flow_logs:
        return
    for vpc in stack.of(VPC):
        yield vpc, [_aws_log(log.props) for log in stack.beside(vpc, FLOW_LOG, "vpcId")]
    for network in stack.of(VNET):
        yield network, [_azure_log(log.props) for log in stack.beside(network, VNET_FLOW_LOG, "targetResourceId")]


def _aws_log(log: Props) -> tuple[str, Props]:
    return "aws", log


def _azure_log(log: Props) -> tuple[str, Props]:
    return "azure", log


def _logged(logs: Sequence[tuple[str, Props]]) -> str | None:
    if not logs:
        return "flowLogs is on: the network must have a flow log"
    for cloud, log in logs:
        if cloud == "azure" and not is_on(log.get("enabled")):
            return "flowLogs is on: the network's flow log must be enabled"
        if cloud == "azure" and not same(block(log, "identity").get("type"), "UserAssigned"):
            return "flowLogs is on: the network's flow log must have an identity of its own: its account takes no keys"
        if cloud == "aws" and not (same(log.get("trafficType"), "ALL") or same(log.get("trafficType"), "REJECT")):
            return "flowLogs is on: the network's flow log must have what is rejected (trafficType ALL)"
    return None


RULES = (
    Rule(
        name="security-group-descriptions",
        description="Every security group and every rule in it says what it is for.",
        numbers=("CKV_AWS_23",),
        parts={GROUP: _with_inline_rules, GROUP_RULE: whole, INGRESS: whole, EGRESS: whole},
        problem=_described,
    ),
    Rule(
        name="subnets-behind-a-firewall",
        description="Every subnet has a network security group.",
        numbers=("CKV2_AZURE_31",),
        parts={SUBNET: whole, VNET: _subnets},
        problem=_behind_a_firewall,
    ),
)
STACK_RULES = (
    StackRule(
        name="default-group-closed",
        description="What is in no group of ours lets nothing in and nothing out.",
        numbers=("CKV2_AWS_12", "CIS AWS 5.0 5.5"),
        parts=_default_groups,
        problem=_closed,
    ),
    StackRule(
        name="flow-logs-as-configured",
        description="With flowLogs, what each network lets through and refuses is logged.",
        numbers=("CKV2_AWS_11", "CIS AWS 5.0 3.7", "CIS Azure 4.0 7.1.1.7"),
        parts=_logs,
        problem=_logged,
    ),
)
