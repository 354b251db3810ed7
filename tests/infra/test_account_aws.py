"""The account's pre-flight on AWS, against moto over HTTP: each failure with its repair."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import moto_cloud
import pytest
from account_checks import Make, answering, finding, states

from infra.clouds import account
from infra.clouds.aws import account as aws
from infra.clouds.aws import api
from infra.errors import UsageError

pytest_plugins = ["account_fixtures"]


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with moto_cloud.aws(monkeypatch) as endpoint:
        yield moto_cloud.image()
    assert endpoint


@contextmanager
def quota(monkeypatch: pytest.MonkeyPatch, limit: float) -> Iterator[None]:
    """Service Quotas' answer, as its documentation has it: moto knows no quotas of EC2's."""
    answer = json.dumps({"Quota": {"ServiceCode": "ec2", "QuotaCode": "L-1216C47A", "Value": limit}})
    with answering(answer.encode(), "application/x-amz-json-1.1") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", url)
        api.client.cache_clear()
        yield


TWO_LIMITS = {
    "quota": "2 nodes need 192 vCPUs; the On-Demand limit of P instances is 192, others use 0",
    "builder": "the image's builder (m6i.2xlarge) needs 8 vCPUs; the On-Demand limit is 192, others use 0",
}
ONE_LIMIT = {
    "quota": "3 nodes and the image's builder (m7i.2xlarge) need 104 vCPUs; the On-Demand limit is 104, others use 0"
}


@pytest.mark.parametrize(("stack", "limit", "counted"), [("aws-xeon", 104, ONE_LIMIT), ("aws-gpu", 192, TWO_LIMITS)])
def test_an_account_that_is_fit(
    make: Make, moto: str, monkeypatch: pytest.MonkeyPatch, stack: str, limit: float, counted: dict[str, str]
) -> None:
    with quota(monkeypatch, limit):
        found = aws.check(make(stack, baseImage=moto))
    undecided = finding(found, "rights")  # moto does not simulate policies: said, not taken for a yes
    assert undecided.state == "undecided" and undecided.mend
    assert {name for name, state in states(found).items() if state == "ok"} == {
        *("sign-in", "region", "type", "zone", "image", "launch", *counted)
    }
    assert {check: finding(found, check).detail for check in counted} == counted
    assert boto3.client("ec2").describe_instances()["Reservations"] == [], "nothing was launched"


def test_gpus_count_in_the_limit_of_their_family(make: Make, moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch: dict[str, Any] = {"ImageId": moto, "InstanceType": "p3dn.24xlarge", "MinCount": 1, "MaxCount": 1}
    ec2 = boto3.client("ec2")
    ec2.run_instances(**launch, TagSpecifications=moto_cloud.tagged("instance", "aws-gpu"))
    ec2.run_instances(**{**launch, "InstanceType": "p4d.24xlarge"})
    ec2.run_instances(**{**launch, "InstanceType": "m6i.4xlarge"})
    with quota(monkeypatch, 192):
        found = aws.check(make("aws-gpu", baseImage=moto))
    nodes, builder = finding(found, "quota"), finding(found, "builder")
    assert nodes.state == "failed" and nodes.detail.endswith("others use 96"), "neither its own nor the m6i"
    assert "--quota-code L-417A185B --desired-value 288 --region us-east-1" in nodes.mend
    assert builder.state == "ok" and builder.detail.endswith("others use 16"), "no P instance"


def test_a_quota_counts_what_others_run_and_not_the_stacks_own(
    make: Make, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch: dict[str, Any] = {"ImageId": moto, "InstanceType": "m7i.8xlarge", "MinCount": 1, "MaxCount": 1}
    ec2 = boto3.client("ec2")
    ec2.run_instances(**launch, TagSpecifications=moto_cloud.tagged("instance", "aws-xeon"))
    ec2.run_instances(**{**launch, "InstanceType": "m6i.4xlarge"})
    with quota(monkeypatch, 96):
        found = finding(aws.check(make("aws-xeon", baseImage=moto)), "quota")
    assert found.state == "failed" and found.detail.endswith("others use 16")
    assert "--quota-code L-1216C47A --desired-value 120 --region us-east-1" in found.mend


def test_a_quota_counts_another_users_stack_of_the_same_name(
    make: Make, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch: dict[str, Any] = {"ImageId": moto, "MinCount": 1, "MaxCount": 1}
    stacks = {"ada aaaa1111": "m7i.8xlarge", "bob bbbb2222": "m6i.4xlarge", "ada cccc3333": "m7i.xlarge"}
    for stack, kind in stacks.items():
        tags = moto_cloud.Stack("aws-xeon", *stack.split()).tagged("instance")
        boto3.client("ec2").run_instances(**launch, InstanceType=kind, TagSpecifications=tags)
    settings = make("aws-xeon", baseImage=moto)
    with quota(monkeypatch, 1000):
        found = finding(aws.check(replace(settings, stack_id="aaaa1111")), "quota")
        assert found.detail.endswith("others use 20"), "bob's, and ada's stack of another state"
        assert finding(aws.check(settings), "quota").detail.endswith("others use 16"), "without an id the owner decides"


def test_the_builder_of_spot_nodes_is_judged_by_the_other_quota(
    make: Make, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New accounts have five vCPUs on demand: too few for a builder, however many Spot has."""
    asked: list[str] = []
    limits = {"L-34B43A08": 96.0, "L-1216C47A": 5.0}

    class Quotas:
        def get_service_quota(self, ServiceCode: str, QuotaCode: str) -> dict[str, Any]:
            asked.append(QuotaCode)
            return {"Quota": {"Value": limits[QuotaCode]}}

    real = api.client
    monkeypatch.setattr(
        api, "client", lambda name, *where: Quotas() if name == "service-quotas" else real(name, *where)
    )
    found = aws.check(make("aws-xeon", baseImage=moto, spot="true"))
    assert finding(found, "quota").detail == "3 nodes need 96 vCPUs; the Spot limit is 96, others use 0"
    builder = finding(found, "builder")
    assert builder.state == "failed" and "(m7i.2xlarge) needs 8 vCPUs; the On-Demand limit is 5" in builder.detail
    assert "--quota-code L-1216C47A --desired-value 8 " in builder.mend
    asked.clear()
    aws.check(make("aws-xeon", image=baked(moto), spot="true"))
    assert asked == ["L-34B43A08"], "no builder where an image is given"


def baked(base: str, *tags: dict[str, str]) -> str:
    """An image of this account."""
    ec2 = boto3.client("ec2")
    machine = ec2.run_instances(ImageId=base, InstanceType="m7i.large", MinCount=1, MaxCount=1)["Instances"][0]
    made = ec2.create_image(InstanceId=machine["InstanceId"], Name=f"image-{len(tags)}")["ImageId"]
    ec2.terminate_instances(InstanceIds=[machine["InstanceId"]])
    if tags:
        ec2.create_tags(Resources=[made], Tags=list(tags))
    return str(made)


@pytest.mark.parametrize("stack", ["aws-xeon", "aws-gpu"])
def test_an_image_is_checked_as_up_will(make: Make, moto: str, stack: str) -> None:
    """Its own, and one that Trainyard has baked: not any that boots."""
    ours = baked(moto, {"Key": "trainyard-image", "Value": "0123456789abcdef"})
    assert finding(aws.check(make(stack, image=ours)), "image").state == "ok"
    untagged = finding(aws.check(make(stack, image=baked(moto))), "image")
    assert untagged.state == "failed" and "it has no tag trainyard-image" in untagged.detail
    theirs = finding(aws.check(make(stack, image=moto)), "image")
    assert theirs.state == "failed" and "this account has no such image in us-east-1" in theirs.detail


def test_a_quota_that_cannot_be_asked_is_undecided(make: Make, moto: str) -> None:
    found = finding(aws.check(make("aws-xeon", baseImage=moto)), "quota")
    assert found.state == "undecided" and "servicequotas" in found.mend


@pytest.mark.parametrize(("stack", "machine"), [("aws-xeon", "m7i.8xlarge"), ("aws-gpu", "p3dn.24xlarge")])
def test_a_zone_that_does_not_offer_the_type_names_those_that_do(
    make: Make, moto: str, stack: str, machine: str
) -> None:
    settings = make(stack, zone="use1-az3", baseImage=moto)
    found = finding(aws.check(settings), "zone")
    assert found.state == "failed" and found.detail.startswith(f"use1-az3 does not offer {machine}; these do: use1-az")
    assert found.mend.startswith("fab config set zone use1-az")
    with pytest.raises(
        UsageError, match=rf"^zone: use1-az3 does not offer {machine}; .*; mend: fab config set zone use1-az"
    ) as e:
        account.cheap(settings)
    assert "\n" not in str(e.value)
    assert set(aws.offers(settings)) >= {"use1-az6"} and "use1-az3" not in aws.offers(settings)


@pytest.mark.parametrize(("stack", "machine"), [("aws-xeon", "m7i.9xlarge"), ("aws-gpu", "p3dn.9xlarge")])
def test_a_type_that_does_not_exist_ends_up_before_anything_is_made(
    make: Make, moto: str, stack: str, machine: str
) -> None:
    settings = make(stack, instanceType=machine)
    assert finding(aws.check(settings), "type").detail == f"us-east-1 has no instance type {machine}"
    with pytest.raises(UsageError, match=rf"^type: us-east-1 has no instance type {machine}"):
        account.cheap(settings)


def test_a_region_and_an_image_that_are_not(make: Make, moto: str) -> None:
    found = aws.check(make("aws-xeon", region="us-east-9", zone="use9-az1"))
    assert found[-1].detail == "AWS has no region us-east-9"
    image = finding(aws.check(make("aws-xeon", image="ami-0123456789abcdef0")), "image")
    assert image.state == "failed" and image.mend == "fab config set image bake --stack aws-xeon"


def test_without_credentials_the_list_ends_there(make: Make, moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    boto3.setup_default_session()
    api.client.cache_clear()
    (only,) = aws.check(make("aws-xeon"))
    assert (only.check, only.state) == ("sign-in", "failed") and "aws sso login" in only.mend
    with pytest.raises(UsageError, match=r"^no AWS credentials that work: .*aws sso login"):
        account.cheap(make("aws-xeon"))  # at the start of an `up`, not half a minute into Pulumi's


def test_the_role_behind_a_session_is_what_iam_simulates() -> None:
    assert aws._source("arn:aws:sts::1234:assumed-role/Admin/ada") == "arn:aws:iam::1234:role/Admin"
    assert aws._source("arn:aws:iam::1234:user/ada") == "arn:aws:iam::1234:user/ada"


REPO = Path(__file__).resolve().parents[2]


def test_the_program_answers_in_json(make: Make, moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `fab` runs it, in a process of its own; a stack without an owner is refused before anybody is asked."""
    done = subprocess.run(
        [sys.executable, "-m", "infra.clouds.account", "aws-xeon"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
