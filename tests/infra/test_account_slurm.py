"""The account's pre-flight for a ParallelCluster: its image, and the limits of queue and head."""

from __future__ import annotations

import json
from collections.abc import Iterator

import boto3
import moto_cloud
import pytest
from account_checks import Make, answering, finding

from infra.clouds.aws import account, api

pytest_plugins = ["account_fixtures"]
BUILT = {"parallelcluster:version": "3.16.1", "parallelcluster:os": "ubuntu2404"}


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An account with a limit of 200 vCPUs for everything."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    answer = json.dumps({"Quota": {"ServiceCode": "ec2", "QuotaCode": "L-1216C47A", "Value": 200}})
    with moto_cloud.aws(monkeypatch), answering(answer.encode(), "application/x-amz-json-1.1") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", url)
        api.client.cache_clear()
        yield


def image(tags: dict[str, str]) -> str:
    """An image of the account's with these tags."""
    ec2 = boto3.client("ec2")
    base = moto_cloud.image()
    machine = ec2.run_instances(ImageId=base, MinCount=1, MaxCount=1, InstanceType="t3.micro")["Instances"][0]
    made = str(ec2.create_image(InstanceId=machine["InstanceId"], Name=f"image-{len(tags)}")["ImageId"])
    ec2.terminate_instances(InstanceIds=[machine["InstanceId"]])
    if tags:
        ec2.create_tags(Resources=[made], Tags=[{"Key": key, "Value": value} for key, value in tags.items()])
    return made


def test_queue_and_head_count_in_limits_of_their_own(moto: None, make: Make) -> None:
    found = account.check(make("aws-slurm", image=image(BUILT)))
    assert finding(found, "image").state == "ok"
    said = "2 nodes need 192 vCPUs; the On-Demand limit of P instances is 200, others use 0"
    assert finding(found, "quota").detail == said
    assert finding(found, "head").detail.startswith("the head (c5n.2xlarge) needs 8 vCPUs; the On-Demand limit is 200")
    more = finding(account.check(make("aws-slurm", image=image(BUILT), nodes="4")), "quota")
    assert more.state == "failed" and "--quota-code L-417A185B --desired-value 288" in more.mend


def test_an_image_that_parallelcluster_cannot_boot_is_said_with_what_builds_one(moto: None, make: Make) -> None:
    for tags, why in (
        ({}, "was not built by ParallelCluster (no tag parallelcluster"),
        ({**BUILT, "parallelcluster:version": "3.15.0"}, "is of ParallelCluster 3.15.0 for ubuntu2404"),
    ):
        found = finding(account.check(make("aws-slurm", image=image(tags))), "image")
        assert found.state == "failed" and why in found.detail
        assert "pcluster build-image --image-id trainyard-closed-driver" in found.mend


def test_parallelclusters_own_image_is_looked_up(moto: None, make: Make) -> None:
    """moto has none of them."""
    found = finding(account.check(make("aws-slurm", image="bake", instanceType="p4d.24xlarge")), "image")
    assert found.state == "failed"
    assert "AWS has no image aws-parallelcluster-3.16.1-ubuntu-2404-lts-hvm-x86_64-* in us-east-1" in found.detail
