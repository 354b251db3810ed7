"""What a stack leaves on AWS: found by its tag, removed in order, against a moto server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import boto3
import moto_cloud
import pytest

from infra.clouds.aws import api, machine_types, orphans
from infra.clouds.aws.kinds import KINDS
from infra.clouds.live_resource import LiveResource
from infra.config.settings import Settings
from infra.errors import OperationError, UsageError

UNSUPPORTED = "the answer is none of AWS's: is there such a call at this endpoint?"


@pytest.fixture(params=["aws-xeon", pytest.param("aws-gpu", marks=pytest.mark.acceptance)])
def settings(good: dict[str, str], request: pytest.FixtureRequest) -> Settings:
    return moto_cloud.settings_of(request.param, good["publicKey"])


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with moto_cloud.quick(monkeypatch) as endpoint:
        yield endpoint


def make(settings: Settings, name: str = "yard") -> dict[str, str]:
    """Everything of a stack of this kind, on machines of its type."""
    return moto_cloud.make_stack(moto_cloud.Stack(name, machine=machine_types.name_of(settings)))


def seen(things: list[LiveResource]) -> list[LiveResource]:
    return [resource for resource in things if not resource.unseen]


def named(things: list[LiveResource], made: dict[str, str]) -> set[str]:
    """What was found, by the names that it was made under."""
    names = {identifier: name for name, identifier in made.items() if name != "role"}
    return {names.get(resource.id or resource.owner, resource.kind) for resource in things}


def test_everything_of_the_stack_is_found_and_priced_and_what_cannot_be_listed_is_said(
    account: str, settings: Settings
) -> None:
    made = make(settings)
    make(settings, "yard-2")
    resources = orphans.find(settings)
    implied = {"volume", "snapshot", "instance profile", "role", "network interface"}
    assert named(seen(resources), made) == ({*made} - {"role"}) | implied

    # moto has neither of these, and AWS may refuse: the audit says that it did not see, and is not clean.
    blind = [resource for resource in resources if resource.unseen]
    assert [resource.kind for resource in blind] == ["capacity reservation", "placement group"]
    assert {resource.what for resource in blind} == {f"cannot be listed: {UNSUPPORTED}"}
    assert {resource.usd_per_hour for resource in blind} == {None}

    # A stopped machine costs its disk alone.
    prices = {resource.what.split()[1]: resource.usd_per_hour for resource in resources if resource.kind == "instance"}
    assert prices["(builder)"] == 0.0
    least = {"aws-xeon": 1, "aws-gpu": 30}[settings.cluster]
    assert prices["(node1)"] == prices["(node2)"] and (prices["(node1)"] or 0) > least


def test_a_sweep_leaves_what_the_state_knows(account: str, settings: Settings) -> None:
    """Ids, not names: node2 was made twice by a killed `up`, and one of the two is nobody's."""
    made = make(settings)
    again = boto3.client("ec2").run_instances(
        ImageId=made["image"],
        InstanceType="m7i.8xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=moto_cloud.tagged("instance", "yard", "node2"),
    )["Instances"][0]["InstanceId"]
    before = named(seen(orphans.find(settings)), made)
    swept = orphans.sweep(settings, set(made.values()))
    assert [resource.owner for resource in swept] == [again]
    assert named(seen(orphans.find(settings)), made) == before - {"instance"}


def test_a_sweep_removes_all_of_a_stack_and_nothing_of_another(account: str, settings: Settings) -> None:
    make(settings)
    theirs = make(settings, "yard-2")
    moto_cloud.fill(theirs["bucket"])
    other = replace(settings, stack="yard-2")
    before = orphans.find(other)
    orphans.sweep(settings, [])
    assert seen(orphans.find(settings)) == []
    assert orphans.find(other) == before
    assert orphans.sweep(settings, []) == [], "safe to repeat"


def test_data_goes_only_when_asked_for(account: str, settings: Settings) -> None:
    made = make(settings)
    moto_cloud.fill(made["bucket"])
    orphans.sweep(settings, [])
    (bucket,) = seen(orphans.find(settings))
    assert (bucket.kind, bucket.what) == ("bucket", made["bucket"])
    assert bucket.holds == "4 objects (older versions counted), 12 B and 1 unfinished uploads"
    orphans.sweep(settings, [], delete_data=True)
    assert seen(orphans.find(settings)) == []


def test_an_images_snapshot_is_found_again_after_a_sweep_that_was_killed(account: str, settings: Settings) -> None:
    """EC2 gives an image's snapshot no tag: it gets one before its image goes."""
    made = make(settings)
    place = orphans.place_of(settings)
    images = [resource for resource in orphans.find(settings) if resource.kind == "image"]
    (mapping,) = boto3.client("ec2").describe_images(ImageIds=[made["image"]])["Images"][0]["BlockDeviceMappings"]
    KINDS["image"].remove(place, images[0].owner)
    assert mapping["Ebs"]["SnapshotId"] in {
        resource.id for resource in orphans.find(settings) if resource.kind == "snapshot"
    }


def test_what_is_of_a_kind_that_nobody_lists_is_seen_by_the_index_of_tags(account: str, settings: Settings) -> None:
    queue = boto3.client("sqs").create_queue(QueueName="odd", tags={"trainyard-stack": "yard"})
    assert queue
    (odd,) = seen(orphans.find(settings))
    assert (odd.kind, odd.what.rpartition(":")[2]) == ("other", "odd")


def test_what_is_not_ours_in_our_network_is_seen_and_left(account: str, settings: Settings) -> None:
    made, ec2 = make(settings), boto3.client("ec2")
    theirs = ec2.create_network_interface(SubnetId=made["subnet"])["NetworkInterface"]["NetworkInterfaceId"]
    found = {resource.owner: resource for resource in orphans.find(settings)}
    assert not found[theirs].ours and "without its tag" in found[theirs].what
    assert theirs not in {resource.owner for resource in orphans.sweep(settings, [made["subnet"], made["vpc"]])}
    assert ec2.describe_network_interfaces(NetworkInterfaceIds=[theirs])["NetworkInterfaces"]


def test_one_thing_that_stays_keeps_no_other(account: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(settings)

    def refused(_place: object, _name: str) -> None:
        boto3.client("s3").get_object(Bucket="none-such-bucket", Key="x")

    monkeypatch.setitem(KINDS, "key pair", replace(KINDS["key pair"], remove=refused))
    with pytest.raises(OperationError, match=f"could not be removed:\nkey pair {made['key']}: NoSuchBucket"):
        orphans.sweep(settings, [])
    assert [resource.kind for resource in seen(orphans.find(settings))] == ["key pair"]


def test_without_credentials_it_is_one_line(
    account: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    boto3.setup_default_session()  # forgets what it has read
    api.client.cache_clear()
    with pytest.raises(
        UsageError, match=r"^no AWS credentials that work: NoCredentialsError: .*; aws sso login"
    ) as raised:
        orphans.find(settings)
    assert "\n" not in str(raised.value)
