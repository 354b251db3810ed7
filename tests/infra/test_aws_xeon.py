"""aws-xeon under mocks: the stack as it is, data and money, the inventory."""

from __future__ import annotations

import json
from pathlib import Path

import pulumi_aws as aws
import pytest
from aws_mocks import BUCKET, OURS
from aws_xeon_program import STACK, Program, cent, machines, one, settings, skus, unpacked
from program_recorder import HOST_KEY, STACK_ID

from infra.clusters import aws_xeon
from infra.prices import table

pytest_plugins = ["aws_xeon_fixtures"]


# --- the stack as it is ---


@pytest.mark.parametrize("preview", [True, False])
def test_the_stack_builds(program: Program, preview: bool) -> None:
    ran = program(preview=preview)
    assert [node.name for node in machines(ran)] == ["node1", "node2", "node3"]
    assert ran.messages == []
    names = {found.type.split(":")[-1] for found in ran.declared.values()}
    assert names >= {"Vpc", "Subnet", "NatGateway", "VpcEndpoint", "SecurityGroup", "KeyPair", "InstanceProfile"}
    assert names >= {"PlacementGroup", "AmiFromInstance", "LaunchTemplate", "Bucket", "Budget"}


def test_everything_goes_through_the_stacks_own_provider(program: Program) -> None:
    ran = program(maxHours=36)
    assert ran["aws"].inputs["region"] == "us-east-1"
    tags = json.loads(ran["aws"].inputs["defaultTags"])["tags"]
    assert tags == {
        "trainyard-stack": STACK,
        "trainyard-owner": "me",
        "trainyard-max-hours": "36",
        "trainyard-id": STACK_ID,
    }
    of_aws = [found for found in ran.declared.values() if found.type.startswith("aws:")]
    assert {found.provider for found in of_aws} == {"aws"}
    assert {call.provider for call in ran.monitor.invoked} == {"aws"}


def test_no_argument_is_a_plain_dict(program: Program) -> None:
    ran = program(spot=True, flowLogs=True)
    assert ran.plain_dicts == []


def test_a_plain_dict_would_be_seen(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws.ec2, "LaunchTemplateMetadataOptionsArgs", dict)
    monkeypatch.setattr(aws.ec2, "LaunchTemplateBlockDeviceMappingArgs", dict)
    assert program(shared=False).plain_dicts == ["template.block_device_mappings", "template.metadata_options"]


def test_no_secret_is_in_any_resource(program: Program, key_file: Path) -> None:
    ran = program()
    everything = repr(ran.declared) + repr(ran.outputs)
    for found in ran.of("ec2/instance:Instance"):
        everything += unpacked(found.inputs["userDataBase64"])
    assert "PRIVATE KEY" not in everything and "AWS_SECRET" not in everything
    assert "not for you" in key_file.with_suffix("").read_text()  # what would have been seen
    assert "not for you" not in everything


# --- data and money ---


def test_the_bucket_is_private_encrypted_versioned_and_tls_only(program: Program) -> None:
    ran = program()
    assert one(ran, "s3/bucket:Bucket").inputs == {"bucket": BUCKET, "forceDestroy": True}
    closed = one(ran, "BucketPublicAccessBlock").inputs
    assert all(closed[key] for key in closed if key != "bucket") and len(closed) == 5
    (rule,) = one(ran, "BucketServerSideEncryptionConfiguration").inputs["rules"]
    assert rule["applyServerSideEncryptionByDefault"]["sseAlgorithm"] == "AES256"
    assert one(ran, "BucketVersioning").inputs["versioningConfiguration"] == {"status": "Enabled"}
    (tidy,) = one(ran, "BucketLifecycleConfiguration").inputs["rules"]
    assert tidy["abortIncompleteMultipartUpload"]["daysAfterInitiation"] == 2 and tidy["status"] == "Enabled"
    (refuse,) = json.loads(one(ran, "BucketPolicy").inputs["policy"])["Statement"]
    assert (refuse["Effect"], refuse["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    assert refuse["Resource"] == [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]


def test_kept_data_outlives_the_stack_with_all_that_protects_it(program: Program) -> None:
    ran = program(keepData=True)
    of_bucket = [found for found in ran.declared.values() if found.type.startswith("aws:s3/")]
    assert all(found.retain_on_delete for found in of_bucket) and len(of_bucket) == 7
    assert ran["data"].inputs["forceDestroy"] is False
    assert not any(found.retain_on_delete for found in program().declared.values())


def test_a_kept_bucket_is_taken_up_again(program: Program) -> None:
    assert program(keepData=True, kept=True)["data"].import_id == BUCKET
    assert program(keepData=True)["data"].import_id == ""


def test_the_budget_tells_before_it_is_spent(program: Program) -> None:
    budget = one(program(budgetUsd=250), "Budget").inputs
    assert (budget["limitAmount"], budget["limitUnit"], budget["timeUnit"]) == ("250", "USD", "MONTHLY")
    assert budget["costFilters"] == [{"name": "TagKeyValue", "values": [f"user:trainyard-id${STACK_ID}"]}]
    notifications = budget["notifications"]
    assert {mail for alarm in notifications for mail in alarm["subscriberEmailAddresses"]} == {"me@example.org"}
    assert {alarm["notificationType"] for alarm in notifications} == {"ACTUAL", "FORECASTED"}


def test_the_bill_has_everything_that_is_declared(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "line", cent)
    assert skus(keys) == {
        "m7i.8xlarge": 3,
        "gp3-gb-month": 3 * 250 + 30,  # the nodes', the stopped builder's
        "nat-gateway": 1,
        "public-ipv4": 2,  # the head's and the gateway's
        "ebs-snapshot-gb-month": 20,
        "s3-gb-month": 40,
    }
    assert skus(keys, publicNodes="all")["public-ipv4"] == 3 and "nat-gateway" not in skus(keys, publicNodes="all")
    assert skus(keys, spot=True)["m7i.8xlarge/spot"] == 3
    assert "ebs-snapshot-gb-month" not in skus(keys, image=OURS)


def test_the_inventory_says_what_the_bill_comes_to(program: Program, keys: dict[str, str]) -> None:
    ran = program()
    assert ran.cluster.hourly_usd == pytest.approx(table.total(aws_xeon.bill(settings(keys))))


# --- the inventory ---


def test_the_inventory_reaches_private_workers_through_the_head(program: Program, key_file: Path) -> None:
    cluster = program(nodes=2).cluster
    assert (cluster.name, cluster.ssh_user, cluster.launcher) == (STACK, "trainyard", "mpirun")
    assert cluster.identity_file == str(key_file.with_suffix(""))
    assert cluster.jump_host == cluster.head.address == "198.51.100.1"
    assert [node.address for node in cluster.nodes] == ["198.51.100.1", "10.0.0.139"]
    assert {node.host_key for node in cluster.nodes} == {HOST_KEY}
    assert cluster.data_url == f"s3://{BUCKET}"


@pytest.mark.parametrize(
    "name, slots, cores, memory",
    [
        ("m7i.8xlarge", 1, 16, 128),
        ("m7i.48xlarge", 2, 48, 768),
        ("r7iz.8xlarge", 1, 16, 256),
        ("m6i.32xlarge", 2, 32, 512),
    ],
)
def test_a_rank_per_numa_node_on_physical_cores(
    program: Program, name: str, slots: int, cores: int, memory: int
) -> None:
    head = program(nodes=1, instanceType=name).cluster.head
    assert (head.slots, head.cores_per_slot, head.memory_gb) == (slots, cores, memory)
