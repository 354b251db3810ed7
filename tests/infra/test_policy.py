"""The policy pack without an engine: what passes, what does not, and what is not known yet."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from typing import Any

import pytest
import yaml
from policy_cases import ATTACHMENT, CASES, GOOD, INSTANCE, NSG, OWN_BUCKET, ROLE, SSH_IN, TAGS, Case, changed, declared
from policy_cases import policy as document

from infra import user_data
from infra.config.settings import load
from infra.policy import leaks, pack, tags
from infra.policy import resource_types as types
from infra.policy.rule import Finding, Resource, Stack
from infra.policy.unknown import UNKNOWN, UndecidedError

ALL = {rule.name: rule for rule in (*pack.RULES, *pack.STACK_RULES)}


def found(stack: Stack) -> dict[str, list[Finding]]:
    """By rule."""
    all_: dict[str, list[Finding]] = {}
    for finding in pack.judge(stack):
        all_.setdefault(finding.rule, []).append(finding)
    return all_


def violated(*resources: Resource) -> set[str]:
    """Rules over single resources that one of these breaks."""
    return {finding.rule for resource in resources for finding in pack.of_resource(resource) if finding.decided}


def test_every_rule_has_a_case_and_says_where_it_comes_from() -> None:
    assert set(CASES) == set(ALL)
    assert len(ALL) == len(pack.RULES) + len(pack.STACK_RULES)
    for rule in ALL.values():
        assert rule.description.endswith(".") and rule.sources
        for source in rule.sources:
            assert re.fullmatch(
                r"CKV2?_(AWS|AZURE|SECRET)_[0-9]+|CIS AWS 5\.0 [0-9.]+|CIS Azure [34]\.0 [0-9.]+|no CKV or CIS number.*"
                r"|AWS Config [a-z0-9-]+|Azure Policy [0-9a-f-]{36}",
                source,
            ), source


def test_a_good_stack_passes_every_rule() -> None:
    assert found(GOOD) == {}


@pytest.mark.parametrize("name", CASES)
def test_a_violation_is_found_by_its_rule_and_no_other(name: str) -> None:
    findings = found(CASES[name].stack(CASES[name].value))
    assert set(findings) == {name}
    assert all(finding.decided and finding.what for finding in findings[name])


PRESENCE = {"disks-managed", "own-launch-template"}
"""They ask whether something is given, which is known where its value is not."""


@pytest.mark.parametrize("name", sorted(set(CASES) - PRESENCE))
def test_a_value_that_is_not_known_is_no_pass(name: str) -> None:
    findings = found(CASES[name].stack(UNKNOWN))
    assert [finding.decided for finding in findings[name]] == [False]


@pytest.mark.parametrize("name", sorted(PRESENCE))
def test_that_a_value_is_given_is_known(name: str) -> None:
    case = CASES[name]
    assert found(GOOD if case.path.startswith("@") else case.stack(UNKNOWN)) == {}


def test_what_is_not_known_hides_no_violation_beside_it() -> None:
    rules = [UNKNOWN, {**NSG.props["securityRules"][0], "sourceAddressPrefix": "*"}]
    findings = list(pack.of_resource(changed(NSG, "securityRules", rules)))
    assert [(f.rule, f.decided) for f in findings if f.rule == "no-ssh-from-anywhere"] == [
        ("no-ssh-from-anywhere", False),
        ("no-ssh-from-anywhere", True),
    ]


@pytest.mark.parametrize("use", [bool, str, list, len, lambda value: value == 1, lambda value: value.get("a")])
def test_nothing_can_be_done_with_what_is_not_known(use: Any) -> None:
    with pytest.raises(UndecidedError):
        use(UNKNOWN)


# --- what is let in ---

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


# --- IAM ---


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


# --- secrets in user data ---

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
SECRETS = {
    "a private key": KEY,
    "an AWS access key": "aws configure set aws_access_key_id AKIA" + "IOSFODNN7EXAMPL2",
    "an AWS secret key": "aws_secret_access_key = " + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "a token of GitHub": "git clone https://x/ # ghp_" + "a1" * 18,
    "a token of Hugging Face": "hf auth login --token hf_" + "Ab3" * 11,
    "a JSON web token": "curl -H 'Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJl'",
    "a password in a URL": "pip install --index-url https://me:hunter22@packages.example.org/simple",
    "a secret in a variable": "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
    "an Azure storage key": "DefaultEndpointsProtocol=https;AccountKey=" + "Ab1/" * 21 + "Ab==",
}


@pytest.mark.parametrize("what", SECRETS)
def test_secrets_are_known_by_their_form(what: str) -> None:
    assert leaks.find(f"#!/bin/sh\n{SECRETS[what]}\n") == what


@pytest.mark.parametrize(
    "text",
    [
        "TOKEN=$(curl -s -X PUT $IMDS)",
        "TOKEN_URL=http://169.254.169.254/latest/api/token",
        "TOKEN_FILE=/run/token.json",
        "HF_TOKEN=${HF_TOKEN:-}",
        "https://packages.example.org/simple",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQ",
    ],
)
def test_where_a_secret_is_to_be_had_is_none(text: str) -> None:
    assert leaks.find(f"#!/bin/sh\n{text}\n") is None


def mime(text: str) -> str:
    whole = MIMEMultipart()
    whole.attach(MIMEText(text, "cloud-config", "utf-8"))
    return whole.as_string()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def files(content: str | bytes, **more: str) -> str:
    return "#cloud-config\n" + yaml.safe_dump({"write_files": [{"path": "/etc/x", "content": content, **more}]})


PACKED = {
    "plain": lambda text: text,
    "base64": lambda text: b64(text.encode()),
    "gzip in base64": user_data.packed,
    "gzip in base64, on lines of 76": lambda text: base64.encodebytes(gzip.compress(text.encode())).decode(),
    "a file of cloud-config": files,
    "a file in gzip in base64": lambda text: files(b64(gzip.compress(text.encode())), encoding="gz+b64"),
    "a binary of YAML": lambda text: files(text.encode()),
    "a part of MIME": mime,
    "cloud-config with a packed file, packed": lambda text: user_data.packed(files(b64(text.encode()), encoding="b64")),
    "MIME, packed": lambda text: user_data.packed(mime(text)),
}


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("key", ["userData", "userDataBase64"])
def test_a_secret_is_found_however_it_is_packed(packing: str, key: str) -> None:
    bad = replace(INSTANCE, props={**INSTANCE.props, key: PACKED[packing](KEY * 3)})
    assert violated(bad) == {"no-secret-in-user-data"}
    node = declared("pulumi-python:dynamic/local:Node", "node1", user_data=PACKED[packing](KEY * 3))
    assert violated(node) == {"no-secret-in-user-data"}


@pytest.mark.parametrize("key", ["passwd", "plain_text_passwd", "hashed_passwd"])
def test_a_password_of_cloud_config(key: str) -> None:
    users = "#cloud-config\n" + yaml.safe_dump({"users": [{"name": "me", key: "correct"}]})
    assert leaks.find(users) == leaks.find(user_data.packed(users)) == "a password"
    assert leaks.find("#cloud-config\nchpasswd:\n  list: |\n    me:horse\n") == "a password"


def test_what_cannot_be_opened_is_no_pass() -> None:
    whole = gzip.compress(KEY.encode())
    assert violated(changed(INSTANCE, "userDataBase64", b64(whole[:10] + b"spoilt" + whole[16:]))) == {
        "no-secret-in-user-data"
    }
    bomb = b64(gzip.compress(b"\0" * (leaks.LARGEST + 1)))
    assert violated(changed(INSTANCE, "userDataBase64", bomb)) == {"no-secret-in-user-data"}


@pytest.mark.parametrize("baked", [False, True])
def test_the_user_data_of_every_cluster_has_none(good: dict[str, str], baked: bool) -> None:
    settings = load("local", good)
    for text in (user_data.for_bake(settings, "i"), user_data.for_node(settings, "i", "node1", "head", baked=baked)):
        assert leaks.find(text) is None and leaks.find(user_data.packed(text)) is None


# --- tags ---


def test_tags_are_the_providers_under_the_resources_own() -> None:
    assert violated(declared(types.VPC, "x")) == set()
    assert violated(replace(declared(types.VPC, "x"), provider={})) == {"tagged"}
    assert violated(replace(declared(types.VPC, "x", tags=TAGS), provider={})) == set()
    assert violated(replace(declared(types.VPC, "x"), provider={"defaultTags": {"tags": TAGS}})) == set()
    assert violated(declared(types.VPC, "x", tags={"trainyard-owner": " "})) == {"tagged"}
    assert violated(declared(types.VPC, "x", tags={"trainyard-max-hours": "soon"})) == {"tagged"}


def test_what_the_provider_has_merged_decides() -> None:
    assert violated(declared(types.VPC, "x", tagsAll={"Name": "x"})) == {"tagged"}
    assert violated(replace(declared(types.VPC, "x", tagsAll=TAGS), provider={})) == set()
    assert violated(declared(types.VPC, "x", tagsAll=UNKNOWN)) == set()


def test_a_type_that_nobody_has_thought_of_has_to_have_tags() -> None:
    assert violated(replace(declared("aws:new/thing:Thing", "x"), provider={})) == {"tagged"}
    assert violated(Resource("azure-native:new:Thing", "x", {})) == {"tagged"}
    assert violated(Resource("command:local:Command", "x", {})) == set()


@pytest.mark.parametrize("type_", sorted(tags.AWS_WITHOUT | tags.AZURE_WITHOUT))
def test_types_without_tags_take_none(type_: str) -> None:
    assert "tags" not in arguments(type_)


NAMED = sorted(
    {
        *(key for rule in pack.RULES for key in rule.parts if key != "*"),
        *(types.VPC, types.DEFAULT_GROUP, types.FLOW_LOG, types.VNET_FLOW_LOG),
        *(types.BLOBS, types.ACCOUNT_LIFECYCLE),
        *(types.BUCKET, types.PUBLIC_ACCESS_BLOCK, types.ENCRYPTION, types.VERSIONING, types.BUCKET_POLICY),
    }
)


@pytest.mark.parametrize("type_", NAMED)
def test_types_that_rules_name_are_the_sdks(type_: str) -> None:
    takes = "tags" in arguments(type_)
    assert takes == (type_ not in tags.AWS_WITHOUT | tags.AZURE_WITHOUT)


def arguments(type_: str) -> set[str]:
    """What the SDK's class for a type takes, read from its source: importing an SDK takes its time."""
    provider, module, name = type_.split(":")
    package = pytest.importorskip(provider.replace("azure-native", "pulumi_azure_native").replace("aws", "pulumi_aws"))
    path = Path(package.__file__).parent / module.split("/")[0]
    for file in (path / f"{snake(name)}.py", path / f"{snake(name)}_.py"):
        if file.exists():
            text = file.read_text()
            if provider == "aws":
                assert f"'{type_}'" in text, f"{type_} is no type of pulumi_aws"
            init = re.search(rf"class {name}(?:Init)?Args:.*?def __init__\(__self__, \*,(.*?)\):", text, re.DOTALL)
            assert init
            return set(re.findall(r"^\s+(\w+): ", init[1], re.MULTILINE))
    raise AssertionError(f"no class {name} in {path}")


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_volumes_say_so_themselves() -> None:
    node = declared(types.INSTANCE, "x", launchTemplate={"id": "lt-1"})
    assert violated(node) == {"volumes-tagged"}  # default tags do not reach what a launch template makes
    assert violated(replace(node, props={**node.props, "volumeTags": UNKNOWN})) == set()
    assert violated(replace(INSTANCE, provider={}, props={**INSTANCE.props, "tags": TAGS})) == {"volumes-tagged"}


# --- what must stand beside a resource ---


@pytest.mark.parametrize(
    "beside", ["private", "encryption", "versions", "tls", "tidy", "closed", "log", "vnet-log", "blobs", "old-versions"]
)
def test_what_must_stand_beside_it_is_missed(beside: str) -> None:
    without = replace(GOOD, resources=[resource for resource in GOOD.resources if resource.name != beside])
    elsewhere = replace(GOOD, resources=[replace(r, links={}) if r.name == beside else r for r in GOOD.resources])
    assert len(found(without)) == 1 and found(without).keys() == found(elsewhere).keys()


def test_a_bucket_may_be_meant_by_its_name() -> None:
    named = [
        replace(r, links={}, props={**r.props, "bucket": "trainyard-lab"}) if "bucket" in r.links else r
        for r in GOOD.resources
    ]
    assert found(replace(GOOD, resources=named)) == {}


def test_flow_logs_only_where_the_settings_ask_for_them() -> None:
    without = [resource for resource in GOOD.resources if not resource.name.endswith("log")]
    assert set(found(replace(GOOD, resources=without))) == {"flow-logs-as-configured"}
    assert found(pack.stack(without, {"flowLogs": "false", "baseImage": GOOD.images[0], "image": "bake"})) == {}
    assert set(found(pack.stack(without, {"flowLogs": "true", "baseImage": GOOD.images[0]}))) == {
        "flow-logs-as-configured"
    }


def test_an_image_that_was_looked_up_is_kept() -> None:
    looked_up = changed(INSTANCE, "ami", "ami-99999999")
    for machine, rules in ((looked_up, {"ami-does-not-drift"}), (replace(looked_up, ignores=("ami",)), set())):
        assert set(found(Stack([machine]))) == rules


def test_a_case_is_an_edit() -> None:
    for name, case in CASES.items():
        assert isinstance(case, Case) and case.stack(case.value).resources != GOOD.resources, name
