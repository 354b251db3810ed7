"""The policy pack's rules about firewalls and rights, in every way that a violation can be written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from policy_cases import (
    ATTACHMENT,
    NSG,
    OWN_BUCKET,
    ROLE,
    SSH_IN,
    changed,
    declared,
    violated,
)
from policy_cases import policy as document

from infra.policy import resource_types as types

EVERYWHERE = ["0.0.0.0/0", "1.2.3.4/0", "::/0", "0::0/0", "0000:0000::/0", "::ffff:0:0/96", "0.0.0.0", "/0", "<nw>/0"]
EVERYWHERE += [
    "*",
    "Any",
    "any",
    "Internet",
    "INTERNET",
    "AzureCloud",
    "AzureCloud.EastUS",
    " * ",
    "0.0.0.0/1",
    "8.0.0.0/6",
]


@pytest.mark.parametrize("source", EVERYWHERE)
@pytest.mark.parametrize("plural", [False, True])
def test_everybody_however_it_is_written(source: str, plural: bool) -> None:
    rule = {key: value for key, value in NSG.props["securityRules"][0].items() if key != "sourceAddressPrefix"}
    rule |= {"sourceAddressPrefixes": ["10.0.0.0/8", source]} if plural else {"sourceAddressPrefix": source}
    assert violated(changed(NSG, "securityRules.0", rule)) == {"no-ssh-from-anywhere"}
    assert violated(declared(types.NSG_RULE, "rule", **rule)) == {"no-ssh-from-anywhere"}


@pytest.mark.parametrize(
    "source", ["203.0.113.7/32", "10.0.0.0/8", "VirtualNetwork", "2001:db8::/48", "131.107.0.0/16"]
)
def test_somebody(source: str) -> None:
    assert violated(changed(NSG, "securityRules.0.sourceAddressPrefix", source)) == set()


@pytest.mark.parametrize(
    "protocol, low, high, ssh",
    [
        *[("tcp", 22, 22, True), ("tcp", 20, 30, True), ("-1", None, None, True), ("6", 0, 65535, True)],
        *[("tcp", 23, 80, False), ("udp", 22, 22, False), ("icmp", -1, -1, False), ("tcp", 22.0, 22.0, True)],
    ],
)
def test_ssh_in_a_range_is_ssh(protocol: str, low: int | None, high: int | None, ssh: bool) -> None:
    edits = {"ipProtocol": protocol, "fromPort": low, "toPort": high, "cidrIpv4": "0.0.0.0/0"}
    props = {key: value for key, value in {**SSH_IN.props, **edits}.items() if value is not None}
    expected = {"no-ssh-from-anywhere" if ssh else "nothing-from-anywhere"}
    assert violated(replace(SSH_IN, props=props)) == expected
    inline = {"protocol": protocol, "fromPort": low, "toPort": high, "description": "x"}
    for cidrs in ({"cidrBlocks": ["0.0.0.0/0"]}, {"ipv6CidrBlocks": ["fd00::/8", "::/0"]}):
        group = declared(types.GROUP, "group", description="x", ingress=[{**inline, **cidrs}])
        assert violated(group) == expected
        lone = declared(types.GROUP_RULE, "rule", type="ingress", **inline, **cidrs)
        assert violated(lone) == expected
        assert violated(changed(lone, "type", "egress")) == set()


@pytest.mark.parametrize(
    "protocol, ports, ssh",
    [
        *[("Tcp", "22", True), ("*", "*", True), ("Tcp", "20-30", True), ("tcp", ["80", "21-23"], True)],
        *[("Tcp", "443", False), ("Udp", "22", False), ("Tcp", ["80", "443"], False), ("Tcp", "80,22", True)],
    ],
)
def test_ssh_in_a_range_of_azures_is_ssh(protocol: str, ports: Any, ssh: bool) -> None:
    rule = {"direction": "inbound", "access": "ALLOW", "protocol": protocol, "sourceAddressPrefix": "Internet"}
    rule["destinationPortRange" if isinstance(ports, str) else "destinationPortRanges"] = ports
    expected = {"no-ssh-from-anywhere" if ssh else "nothing-from-anywhere"}
    assert violated(changed(NSG, "securityRules", [rule])) == expected
    assert violated(changed(NSG, "securityRules", [{**rule, "access": "Deny"}])) == set()
    assert violated(changed(NSG, "securityRules", [{**rule, "direction": "Outbound"}])) == set()


def test_a_prefix_list_is_nobody_in_particular() -> None:
    rule = changed(changed(SSH_IN, "cidrIpv4", None), "prefixListId", "pl-0123456789")
    assert violated(rule) == {"no-ssh-from-anywhere"}


@pytest.mark.parametrize(
    "resource, passes",
    [
        ("arn:aws:s3:::trainyard-lab", True),
        ("arn:aws:s3:::trainyard-lab/*", True),
        ("arn:aws-cn:s3:::trainyard-lab/checkpoints/*", True),
        ("arn:aws:logs:us-east-1:123456789012:log-group:trainyard-lab-flow-logs:*", True),
        ("arn:aws:logs:us-east-1:123456789012:log-group:*:*", False),
        ("*", False),
        ("arn:aws:s3:::*", False),
        ("arn:aws:s3:::*/*", False),
        ("arn:aws:s3:::trainyard-*", False),
        ("arn:aws:s3:::trainyard-*/*", False),
        ("arn:aws:s3:::trainyard-la?/*", False),
        ("arn:aws:ec2:us-east-1:123456789012:instance/*", False),
    ],
)
def test_a_star_stands_for_the_objects_of_one_bucket_only(resource: str, passes: bool) -> None:
    bad = declared(types.ROLE_POLICY, "p", policy=document({**OWN_BUCKET, "Resource": resource}))
    assert violated(bad) == (set() if passes else {"iam-no-stars"})


@pytest.mark.parametrize(
    "edit",
    [
        {"Action": "*"},
        {"Action": ["s3:GetObject", "s3:*"]},
        {"Action": "s3:Get*"},
        {"Action": ["ec2:DescribeInstances", "ec2:RunInstances"], "Resource": "*"},
        {"NotAction": "iam:*"},
        {"NotResource": "arn:aws:s3:::other"},
    ],
)
def test_stars_in_other_places(edit: dict[str, Any]) -> None:
    assert violated(declared(types.POLICY, "p", policy=document(OWN_BUCKET, {**OWN_BUCKET, **edit}))) == {
        "iam-no-stars"
    }


def test_what_reads_and_takes_no_resource_may_have_a_star() -> None:
    reading = {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"}
    assert violated(declared(types.POLICY, "p", policy=document(reading))) == set()
    assert violated(declared(types.POLICY, "p", policy=json.loads(document(reading)))) == set()


@pytest.mark.parametrize(
    "condition, passes",
    [
        ({"StringEquals": {"cloudwatch:namespace": "Trainyard"}}, True),
        ({}, False),
        ({"StringEquals": {"aws:SourceAccount": "123456789012"}}, False),
        ({"StringLike": {"cloudwatch:namespace": "*"}}, False),
    ],
)
def test_metrics_are_written_into_a_namespace_that_is_named(condition: dict[str, Any], passes: bool) -> None:
    write = {"Effect": "Allow", "Action": "cloudwatch:PutMetricData", "Resource": "*", "Condition": condition}
    found = violated(declared(types.POLICY, "p", policy=document(write)))
    assert found == (set() if passes else {"iam-no-stars"})


@pytest.mark.parametrize("principal", ["*", {"AWS": "*"}, {"AWS": "arn:aws:iam::123456789012:root"}, {"Service": "*"}])
def test_who_may_take_a_role(principal: Any) -> None:
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}
    assert violated(changed(ROLE, "assumeRolePolicy", document(trust))) == {"roles-for-services"}


@pytest.mark.parametrize("name", ["AdministratorAccess", "PowerUserAccess", "IAMFullAccess", "AmazonS3FullAccess"])
def test_policies_that_give_too_much(name: str) -> None:
    assert violated(changed(ATTACHMENT, "policyArn", f"arn:aws:iam::aws:policy/{name}")) == {"no-administrators"}
