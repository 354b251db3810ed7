"""Everything that reaches AWS has the forms that AWS accepts: all that the stacks declare, in every configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aws_judge
import boto3
import pytest
from aws_mocks import ACCOUNT, OURS, Amazon
from aws_xeon_program import OWN, cent
from bad_settings import as_text
from hypothesis import given, settings
from hypothesis import strategies as st
from program_recorder import Ran, run

from infra.clouds.aws import capacity, machine_types, names, zones
from infra.config import stack_file
from infra.config.keys import KEYS
from infra.config.settings import ROOT, load
from infra.prices import table

LONG = "a" * 32
"""The longest name of a stack."""
STACKS = [
    path.name.split(".")[1]
    for path in sorted((ROOT / "stacks").glob("Pulumi.*.yaml"))
    if "trainyard:cluster: aws-" in path.read_text()
]
CHANGES: dict[str, dict[str, object]] = {
    "as it is": {},
    "one node": {"nodes": 1},
    "64 nodes": {"nodes": 64, "cidr": "10.0.0.0/22"},
    "64 public nodes": {"nodes": 64, "cidr": "192.168.0.0/16", "publicNodes": "all"},
    "the smallest network": {"nodes": 2, "cidr": "172.16.0.0/26"},
    "spot": {"spot": True},
    "an image": {"image": OURS},
    "a base": {"baseImage": "ami-0eeeeeeeeeeeeeeee"},
    "all keys": {"spot": True, "flowLogs": True, "monitoring": True, "keepData": True, "replaceNodes": True},
    "the largest disk": {"diskGb": 16 * 1024},
    "a long owner": {"owner": f"{'o' * 30}.{'w' * 20}@x-_y.org", "alertEmail": f"{'m' * 30}@{'e' * 15}.org"},
    "another profile": {"profile": "native", "collectives": "gloo"},
    "china": {"region": "cn-northwest-1", "zone": "cnnw1-az1", "flowLogs": True},
    "the US government": {"region": "us-gov-west-1", "zone": "usgw1-az1", "flowLogs": True},
    "far away": {"region": "ap-southeast-4", "zone": "apse4-az1"},
}

OF_STACK: dict[str, dict[str, str]] = {"aws-slurm": {"image": OURS}}
"""What a stack needs besides OWN: p3dn an image of its own."""
REFUSED = {
    "aws-slurm": ("one node", "64 public nodes", "a base"),
    "aws-eks": ("64 nodes", "64 public nodes", "the smallest network", "an image", "a base"),
}
"""Changes that a stack's check refuses (its own tests): nothing of them reaches AWS."""

Program = Callable[..., Ran]


@pytest.fixture(scope="module")
def program(key_file: Path) -> Program:
    """Run the program of a stack with these keys, in a region where everything has a price and is offered."""

    def of(stack: str, name: str = "", **changed: object) -> Ran:
        raw = {**stack_file.read(stack), **OWN, **OF_STACK.get(stack, {}), "publicKey": str(key_file)}
        raw |= {key: as_text(value) for key, value in changed.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table, "line", cent)
            patch.setattr(table, "is_priced", lambda *_: True)
            patch.setattr(zones, "check_offer", lambda *_: None)
            return run(raw, Amazon(), stack=name or stack)

    return of


# --- what the stacks declare ---


def test_there_are_stacks_on_aws() -> None:
    assert {"aws-xeon", "aws-gpu"} <= set(STACKS)


def check_forms(program: Program, stack: str, what: str) -> None:
    changed = CHANGES[what]
    if "profile" in changed and stack_file.read(stack)["profile"] == "cuda":
        changed = {"instanceType": "p5.48xlarge"}  # it has no other profile, but types with other software
    assert aws_judge.declared(program(stack, **changed)) == []
    assert aws_judge.declared(program(stack, LONG, **changed)) == []


@pytest.mark.parametrize("stack", STACKS)
def test_all_that_a_stack_declares_has_a_form_that_aws_accepts(program: Program, stack: str) -> None:
    check_forms(program, stack, "all keys")


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("stack", "what"), [(stack, what) for stack in STACKS for what in CHANGES if what not in REFUSED.get(stack, ())]
)
def test_so_it_has_with_other_settings(program: Program, stack: str, what: str) -> None:
    check_forms(program, stack, what)


RESERVED, BLOCK = "cr-0123456789abcdef0", "cr-0123456789abcdef1"
EVERY: dict[str, st.SearchStrategy[Any]] = {
    "nodes": st.integers(1, 40),
    "cidr": st.sampled_from(["10.0.0.0/23", "172.31.0.0/16", "192.168.4.0/22"]),
    "spot": st.booleans(),
    "publicNodes": st.sampled_from(["head", "all"]),
    "flowLogs": st.booleans(),
    "monitoring": st.booleans(),
    "keepData": st.booleans(),
    "replaceNodes": st.booleans(),
    "adminCidr": st.sampled_from(["203.0.113.7/32", "198.51.100.0/24", "10.9.0.0/16"]),
    "owner": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.@_-]{0,62}", fullmatch=True),
    "alertEmail": st.from_regex(r"[A-Za-z0-9._%+-]{1,32}@[A-Za-z0-9-]{1,10}(\.[A-Za-z0-9-]{1,4}){1,2}", fullmatch=True),
    "budgetUsd": st.integers(1, 10_000_000),
    "maxHours": st.integers(1, 24 * 31),
    "idleMinutes": st.integers(0, 24 * 60),
    "image": st.sampled_from(["bake", OURS]),
    "baseImage": st.sampled_from(["", "ami-0eeeeeeeeeeeeeeee"]),
    "capacityReservation": st.sampled_from(["", "none", RESERVED, BLOCK]),
}
ONLY: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "aws-slurm": {
        "nodes": st.integers(2, 40),
        "publicNodes": st.just("head"),
        "image": st.just(OURS),
        "baseImage": st.just(""),
        "capacityReservation": st.sampled_from(["", "none", RESERVED]),
    },
    "aws-eks": {
        "nodes": st.integers(1, 20),
        "cidr": st.sampled_from(["10.0.0.0/16", "172.31.0.0/16", "192.168.0.0/16"]),
        "publicNodes": st.just("head"),
        "idleMinutes": st.just(0),
        "image": st.just("bake"),
        "baseImage": st.just(""),
    },
}
"""What a stack takes of EVERY, where that is not all."""
LEAST_DISK_GB = {"aws-xeon": 30, "aws-gpu": 60, "aws-slurm": 80, "aws-eks": 80}
# As the stack files have them, or in test_all_that_a_stack_declares_has_a_form_that_aws_accepts.
FIXED = {"cluster", "profile", "collectives", "publicKey", "region", "zone", "cpus", "memoryMb", "scheduler"}


def test_every_key_is_among_the_generated_settings() -> None:
    assert {*EVERY, *FIXED, "instanceType", "diskGb"} == set(KEYS)


def reservation(name: str, instance_type: str) -> dict[str, Any]:
    """As EC2 describes one of these two, the first in a placement group."""
    group = f"arn:aws:ec2:us-east-1:{ACCOUNT}:placement-group/old-group" if name == RESERVED else ""
    return {
        **{"State": "active", "InstanceType": instance_type, "AvailabilityZoneId": "use1-az6"},
        **{"InstancePlatform": capacity.PLATFORM, "AvailableInstanceCount": 64, "PlacementGroupArn": group},
        "ReservationType": "capacity-block" if name == BLOCK else "default",
    }


@pytest.mark.acceptance
@pytest.mark.parametrize("stack", LEAST_DISK_GB)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), name=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True))
def test_whatever_is_valid_here_is_valid_there(program: Program, stack: str, data: st.DataObject, name: str) -> None:
    types = [name for name, known in machine_types.CHOICES[stack].types.items() if known.cluster]
    own = {
        "instanceType": st.sampled_from(types),
        "diskGb": st.integers(LEAST_DISK_GB[stack], 16 * 1024),
    }
    changed = data.draw(st.fixed_dictionaries({**EVERY, **ONLY.get(stack, {}), **own}))
    if changed["capacityReservation"].startswith("cr-"):
        changed["spot"] = False  # both are refused here
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "_by_id", lambda _region, name: [reservation(name, changed["instanceType"])])
        patch.setattr(capacity, "_running", lambda *_: [])
        assert aws_judge.declared(program(stack, name, **changed)) == []


@pytest.mark.parametrize(
    "region, partition", [("us-east-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-east-1", "aws-us-gov")]
)
def test_arns_are_of_the_regions_own_partition(program: Program, key_file: Path, region: str, partition: str) -> None:
    raw = {**stack_file.read("aws-xeon"), **OWN, "publicKey": str(key_file), "region": region}
    wanted = load("aws-xeon", raw)
    assert names.arn(wanted, "ec2", ACCOUNT, "vpc-flow-log/*").startswith(f"arn:{partition}:ec2:{region}:{ACCOUNT}:")
    zone = f"{zones.short(wanted)}-az1"
    trust = program("aws-xeon", region=region, zone=zone, flowLogs=True)["flow-log-role"].inputs["assumeRolePolicy"]
    assert f"arn:{partition}:ec2:{region}" in trust


# --- the judge itself ---

WRONG: dict[str, tuple[str, str, object]] = {
    "an apostrophe in a rule's description": ("operator-ssh", "description", "SSH from the operator's network"),
    "an apostrophe in another rule's": ("nodes-among-themselves", "description", "the nodes' own"),
    "a slash too long a description": ("nodes-group", "description", "x" * 256),
    "a group that is called like an id": ("nodes-group", "name", "sg-nodes"),
    "a bucket in capitals": ("data", "bucket", "Trainyard"),
    "a bucket with two dots": ("data", "bucket", "trainyard..lab"),
    "a bucket of another length": ("data", "bucket", "x" * 64),
    "a bucket with a reserved end": ("data", "bucket", "trainyard-s3alias"),
    "a key of a kind that EC2 has not": ("key", "publicKey", "ecdsa-sha2-nistp256 AAAA"),
    "a role's name with a blank": ("role", "name", "trainyard lab"),
    "a role's name too long": ("role", "name", "r" * 65),
    "a policy that is too long": ("role-data", "policy", '{"Statement": []}' + " " * 10240),
    "a policy's name with a slash": ("role-data", "name", "a/b"),
    "a profile's name with a slash": ("profile", "name", "a/b"),
    "a template's name with a blank": ("template", "name", "two words"),
    "a number that is none": ("template", "cpuOptions", {"coreCount": "many", "threadsPerCore": 1.0}),
    "half a core": ("template", "cpuOptions", {"coreCount": 1.5, "threadsPerCore": 1.0}),
    "a template's unknown block": ("template", "metaOptions", {"httpTokens": "required"}),
    "a template's unknown key": ("template", "metadataOptions", {"httpToken": "required"}),
    "a value that is not AWS's": ("template", "metadataOptions", {"httpTokens": "mandatory"}),
    "a type that EC2 has not": ("template", "instanceType", "m7i.9xlarge"),
    "an end of a Spot node that EC2 has not": ("template", "instanceInitiatedShutdownBehavior", "delete"),
    "user data that is too long": ("node1", "userDataBase64", "A" * 24000),
    "an address outside of the subnet": ("node1", "privateIp", "10.0.0.200"),
    "an address that AWS keeps": ("node1", "privateIp", "10.0.0.3"),
    "a tag's value with a star": ("network", "tags", {"Name": "trainyard*"}),
    "a tag that is AWS's own": ("network", "tags", {"aws:name": "x"}),
    "a tag that is too long": ("node1", "volumeTags", {"Name": "x" * 257}),
    "too many tags": ("network", "tags", {f"t{n}": "" for n in range(51)}),
    "a network that is too large": ("network", "cidrBlock", "10.0.0.0/8"),
    "a zone's name for its id": ("public-subnet", "availabilityZoneId", "us-east-1a"),
    "a placement that EC2 has not": ("together", "strategy", "near"),
    "a service that is none": ("store", "serviceName", "s3"),
    "an endpoint of another type": ("store", "vpcEndpointType", "gateway"),
    "days of logs that CloudWatch has not": ("flow-log-group", "retentionInDays", 31.0),
    "a log group with a blank": ("flow-log-group", "name", "flow logs"),
    "traffic of no type": ("flow-log", "trafficType", "EVERYTHING"),
    "a budget's name with a colon": ("budget", "name", "trainyard:lab"),
    "a budget's amount that is no number": ("budget", "limitAmount", "much"),
    "a bucket's rule of no state": ("data-versions", "versioningConfiguration", {"status": "On"}),
    "an encryption that S3 has not": (
        "data-encrypted",
        "rules",
        [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "rot13"}}],
    ),
    "a property that nobody has entered": ("network", "ipv6Everything", True),
}


@pytest.fixture(scope="module")
def logged(program: Program) -> Ran:
    return program("aws-xeon", flowLogs=True)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_form_is_found_and_nothing_else(logged: Ran, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    name, key, value = WRONG[what]
    one = logged[name]
    monkeypatch.setitem(logged.declared, name, replace(one, inputs={**one.inputs, key: value}))
    found = aws_judge.declared(logged)
    assert found, what
    if key != "cidrBlock":
        assert all(line.startswith(f"{name}: ") for line in found), found


def test_a_type_that_nobody_has_entered_is_found(logged: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = replace(logged["network"], type="aws:lambda/function:Function")
    monkeypatch.setitem(logged.declared, "network", unknown)
    assert aws_judge.declared(logged) == [
        "network: nothing is known of aws:lambda/function:Function; enter it in aws_calls.py"
    ]


def test_every_documented_form_has_its_source() -> None:
    for form in aws_judge.DOCUMENTED:
        assert form.source.startswith("https://docs.aws.amazon.com/"), form


def test_a_call_of_boto3_is_judged_before_it_is_made() -> None:
    session = boto3.session.Session(aws_access_key_id="x", aws_secret_access_key="y", region_name="us-east-1")
    aws_judge.watch(session)
    ec2 = session.client("ec2", endpoint_url="http://127.0.0.1:9")
    with pytest.raises(AssertionError, match=r"CreateSecurityGroup\.Description: .* is not of the form"):
        ec2.create_security_group(GroupName="nodes", Description="the operator's", VpcId="vpc-1")
    with pytest.raises(AssertionError, match="is none of AWS's values"):
        ec2.run_instances(ImageId="ami-12345678", InstanceType="m7i.9xlarge", MinCount=1, MaxCount=1)
