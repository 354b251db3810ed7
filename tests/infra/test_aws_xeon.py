"""aws-xeon under mocks: what the program declares, in which order, and what it refuses before it declares anything."""

from __future__ import annotations

import base64
import gzip
import ipaddress
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import aws_judge
import pulumi
import pulumi_aws as aws
import pytest
import yaml
from aws_mocks import ACCOUNT, BAKED_FROM, BUCKET, FOREIGN, OURS, RESERVATION, UBUNTU, ZONES, Amazon
from bad_settings import as_text
from program_recorder import HOST_KEY, STACK_ID, Declared, Ran, run
from sample_inputs import public_key

from infra import user_data
from infra.clouds.aws import builder as gate
from infra.clouds.aws import capacity, image, machine_types, nodes, zones
from infra.clusters import aws_xeon
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.config.values import SettingsError
from infra.errors import UsageError
from infra.prices import table

STACK = "aws-xeon"
OWN = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
"""What the stack's file leaves to its user."""

Program = Callable[..., Ran]


@pytest.fixture
def keys(key_file: Path) -> dict[str, str]:
    return {**stack_file.read(STACK), "publicKey": str(key_file), **OWN}


@pytest.fixture
def program(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Run the program with these keys; a thing of any kind costs a cent an hour."""
    monkeypatch.setattr(table, "line", cent)

    def of_aws(*, stack: str = STACK, preview: bool = False, kept: bool = False, **changed: object) -> Ran:
        raw = {**keys, **{key: as_text(value) for key, value in changed.items()}}
        return run(raw, Amazon(kept=kept), stack=stack, preview=preview)

    return of_aws


def cent(_cloud: str, _region: str, sku: str, count: float = 1, *, what: str = "") -> table.Line:
    return table.Line(f"{sku}: {what}", count, "thing", 0.01 * count, "2026-11-21")


def machines(ran: Ran) -> list[Declared]:
    """The nodes: instances, but for the builder."""
    return [found for found in ran.of("ec2/instance:Instance") if found.name.startswith("node")]


def one(ran: Ran, type_: str) -> Declared:
    (found,) = ran.of(type_)
    return found


def unpacked(packed: str) -> str:
    return gzip.decompress(base64.b64decode(packed)).decode()


def settings(keys: dict[str, str], **changed: object) -> Settings:
    return load(STACK, {**keys, **{key: as_text(value) for key, value in changed.items()}})


# --- the stack as it is ---


@pytest.mark.parametrize("preview", [True, False])
def test_the_stack_builds(program: Program, preview: bool) -> None:
    ran = program(preview=preview)
    assert [node.name for node in machines(ran)] == ["node1", "node2", "node3"]
    assert ran.said == []
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
    assert program().plain_dicts == ["template.block_device_mappings", "template.metadata_options"]


def test_no_secret_is_in_any_resource(program: Program, key_file: Path) -> None:
    ran = program()
    everything = repr(ran.declared) + repr(ran.outputs)
    for found in ran.of("ec2/instance:Instance"):
        everything += unpacked(found.inputs["userDataBase64"])
    assert "PRIVATE KEY" not in everything and "AWS_SECRET" not in everything
    assert "not for you" in key_file.with_suffix("").read_text()  # what would have been seen
    assert "not for you" not in everything


# --- the network ---


def test_the_subnets_are_in_one_zone_and_inside_the_network(program: Program) -> None:
    ran = program()
    subnets = ran.of("ec2/subnet:Subnet")
    assert {found.inputs["availabilityZoneId"] for found in subnets} == {"use1-az6"}
    assert not any("availabilityZone" in found.inputs for found in subnets)  # names differ from account to account
    inside = [ipaddress.IPv4Network(found.inputs["cidrBlock"]) for found in subnets]
    whole = ipaddress.IPv4Network(one(ran, "ec2/vpc:Vpc").inputs["cidrBlock"])
    assert all(subnet.subnet_of(whole) for subnet in inside)
    assert not any(a.overlaps(b) for a in inside for b in inside if a != b)


def test_addresses_are_fixed_and_inside_the_nodes_own_subnet(program: Program) -> None:
    ran = program(nodes=4)
    subnets = {f"{found.name}-id": found.inputs["cidrBlock"] for found in ran.of("ec2/subnet:Subnet")}
    addresses = [node.inputs["privateIp"] for node in machines(ran)]
    assert addresses == ["10.0.0.10", "10.0.0.139", "10.0.0.140", "10.0.0.141"]
    assert [node.private_ip for node in ran.cluster.nodes] == addresses
    for node in machines(ran):
        subnet = ipaddress.IPv4Network(subnets[node.inputs["subnetId"]])
        at = int(ipaddress.IPv4Address(node.inputs["privateIp"])) - int(subnet.network_address)
        assert 4 <= at < subnet.num_addresses - 1, "AWS keeps the first four and the last"


def test_what_takes_an_address_by_itself_is_never_in_a_nodes_way(program: Program) -> None:
    ran = program()
    taken = {ran[name].inputs["subnetId"] for name in ("nat", stage(ran)["builder"])}
    assert taken == {"edge-subnet-id"}
    assert "edge-subnet-id" not in {node.inputs["subnetId"] for node in machines(ran)}


def test_another_number_of_nodes_or_public_workers_moves_no_other_node(program: Program) -> None:
    few, many, public = program(nodes=2), program(nodes=5), program(nodes=2, publicNodes="all")
    for name in ("node1", "node2"):
        assert few[name].inputs == many[name].inputs
    assert few["node1"].inputs == public["node1"].inputs
    assert few["public-subnet"].inputs == public["public-subnet"].inputs


def test_the_head_alone_is_public_and_the_workers_go_out_by_nat(program: Program) -> None:
    ran = program()
    assert [node.inputs["associatePublicIpAddress"] for node in machines(ran)] == [True, False, False]
    assert {found.inputs["mapPublicIpOnLaunch"] for found in ran.of("ec2/subnet:Subnet")} == {False}
    out = {found.name: found.inputs for found in ran.of("ec2/route:Route")}
    assert out["private-out"]["natGatewayId"] == "nat-id" and "natGatewayId" not in out["public-out"]
    assert ran["private-joined"].inputs["routeTableId"] == "private-routes-id"
    assert ran["nat"].inputs["subnetId"] != "private-subnet-id" and "public-out" in ran["nat"].needs


@pytest.mark.parametrize("changed", [{"publicNodes": "all"}, {"nodes": 1}], ids=str)
def test_no_nat_gateway_is_paid_for_where_nobody_needs_one(program: Program, changed: dict[str, object]) -> None:
    ran = program(**changed)
    assert ran.of("NatGateway") == [] and ran.of("Eip") == []
    assert all(node.inputs["associatePublicIpAddress"] for node in machines(ran))
    assert ran.cluster.jump_host == ""
    assert all(node.ssh_host.startswith("198.51.100.") for node in ran.cluster.nodes)


def test_one_node_pays_for_no_gateway_and_stays_as_it_is_when_there_are_four(
    program: Program, keys: dict[str, str]
) -> None:
    one_node, four = program(nodes=1), program(nodes=4)
    assert one_node.of("NatGateway") == [] and "nat-gateway" not in skus(keys, nodes=1)
    assert skus(keys, nodes=1)["public-ipv4"] == 1
    assert one_node["node1"].inputs == four["node1"].inputs
    for name in ("network", "public-subnet", "edge-subnet", "template"):
        assert one_node[name].inputs == four[name].inputs, name


def test_the_data_sets_way_is_on_every_route_table(program: Program) -> None:
    ran = program()
    tables = {f"{found.name}-id" for found in ran.of("RouteTable")}
    assert set(one(ran, "VpcEndpoint").inputs["routeTableIds"]) == tables == {"public-routes-id", "private-routes-id"}
    assert one(ran, "VpcEndpoint").inputs["serviceName"] == "com.amazonaws.us-east-1.s3"


def test_the_network_is_logged_by_config(program: Program) -> None:
    assert program().of("FlowLog") == []
    logged = one(program(flowLogs=True), "FlowLog")
    assert logged.inputs["trafficType"] == "ALL" and "flow-log-rights" in logged.needs


def test_the_service_of_flow_logs_may_take_its_role_for_this_account_only(program: Program) -> None:
    """https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html"""
    ran = program(flowLogs=True)
    (trust,) = json.loads(ran["flow-log-role"].inputs["assumeRolePolicy"])["Statement"]
    assert trust["Condition"] == {
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
        "ArnLike": {"aws:SourceArn": f"arn:aws:ec2:us-east-1:{ACCOUNT}:vpc-flow-log/*"},
    }
    rights = json.loads(ran["flow-log-rights"].inputs["policy"])["Statement"]
    assert [entry["Action"] for entry in rights] == [
        ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
        "logs:DescribeLogGroups",
    ]


# --- who may talk to whom ---


def test_ssh_is_let_in_from_the_operator_and_everything_from_the_nodes_themselves(program: Program) -> None:
    ran = program(adminCidr="198.51.100.0/24")
    rules = {found.name: found.inputs for found in ran.of("SecurityGroupIngressRule")}
    assert set(rules) == {"nodes-among-themselves", "operator-ssh"}
    ssh, among = rules["operator-ssh"], rules["nodes-among-themselves"]
    assert (ssh["cidrIpv4"], ssh["ipProtocol"], ssh["fromPort"], ssh["toPort"]) == ("198.51.100.0/24", "tcp", 22, 22)
    assert among["referencedSecurityGroupId"] == among["securityGroupId"] == "nodes-group-id"
    assert among["ipProtocol"] == "-1" and not {"fromPort", "cidrIpv4"} & set(among)


def test_groups_have_rules_of_their_own_and_all_say_what_for(program: Program) -> None:
    ran = program()
    rules = [*ran.of("SecurityGroupIngressRule"), *ran.of("SecurityGroupEgressRule")]
    groups = ran.of("ec2/securityGroup:SecurityGroup")
    assert all(found.inputs["description"] for found in (*rules, *groups))
    assert not any({"ingress", "egress"} & set(found.inputs) for found in groups)
    assert {found.inputs["securityGroupId"] for found in ran.of("EgressRule")} == {"nodes-group-id", "builder-group-id"}


def test_the_default_group_lets_nothing_through(program: Program) -> None:
    closed = one(program(), "DefaultSecurityGroup").inputs
    assert closed["ingress"] == [] and closed["egress"] == []


def test_machines_may_use_their_own_bucket_and_systems_manager(program: Program) -> None:
    ran = program()
    policy = json.loads(ran["role-data"].inputs["policy"])
    arn = f"arn:aws:s3:::{BUCKET}"
    assert {json.dumps(entry["Resource"]) for entry in policy["Statement"]} == {f'"{arn}"', f'"{arn}/*"'}
    actions = {action for entry in policy["Statement"] for action in entry["Action"]}
    assert all(action.startswith("s3:") and "*" not in action for action in actions)
    assert actions >= {"s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
    (agent,) = json.loads(ran["role-ssm"].inputs["policy"])["Statement"]
    assert {action.partition(":")[0] for action in agent["Action"]} == {"ssm", "ssmmessages", "ec2messages"}
    assert [action for action in agent["Action"] if action.startswith("ssm:")] == ["ssm:UpdateInstanceInformation"]
    assert len(agent["Action"]) == 11
    assert ran.of("RolePolicyAttachment") == [], "AWS's own policy reads every parameter of the account"
    assert ran[stage(ran)["builder"]].inputs["iamInstanceProfile"] == f"trainyard-aws-xeon-{STACK_ID}"
    assert one(ran, "LaunchTemplate").inputs["iamInstanceProfile"] == {"name": f"trainyard-aws-xeon-{STACK_ID}"}


def test_monitoring_is_a_right_to_our_own_metrics_a_word_to_the_nodes_and_a_price(
    program: Program, keys: dict[str, str]
) -> None:
    ran = program(monitoring=True)
    (allowed,) = json.loads(ran["role-metrics"].inputs["policy"])["Statement"]
    assert allowed["Action"] == "cloudwatch:PutMetricData"
    assert allowed["Condition"] == {"StringEquals": {"cloudwatch:namespace": "Trainyard"}}
    assert "role-metrics" in ran["node1"].needs
    builder, node = (unpacked(ran[name].inputs["userDataBase64"]) for name in (stage(ran)["builder"], "node1"))
    assert "TRAINYARD_MONITORING=true\n" in node and "TRAINYARD_MONITORING=" not in builder
    assert stage(ran) == stage(program()) and "role-metrics" not in program().declared
    assert skus(keys, monitoring=True)["cloudwatch-metric-month"] == 3 * 4
    assert skus(keys, monitoring=True)["cloudwatch-request"] == 3 * 60
    assert not any(name.startswith("cloudwatch") for name in skus(keys))


# --- the golden image ---


def stage(ran: Ran) -> dict[str, str]:
    """builder, baked, sealed, stopped, image -> the logical name, which ends in the image's key."""
    names = ("builder", "baked", "sealed", "stopped", "image")
    return {
        what: name
        for what in names
        for name in ran.declared
        if name.startswith(f"{what}-") and len(name) > 16 + len(what)
    }


def test_the_image_depends_on_the_gate_and_on_a_stopped_builder(program: Program) -> None:
    ran = program()
    made = stage(ran)
    assert made["baked"] in ran.closure(made["sealed"])
    assert made["sealed"] in ran[made["stopped"]].needs
    assert made["stopped"] in ran[made["image"]].needs
    assert ran.closure(made["image"]) >= {made[what] for what in ("builder", "baked", "sealed", "stopped")}
    assert ran[made["stopped"]].inputs["state"] == "stopped"
    assert ran[made["image"]].inputs["snapshotWithoutReboot"] is False


def test_the_nodes_depend_on_the_image(program: Program) -> None:
    ran = program()
    for node in machines(ran):
        assert node.property_needs["ami"] == {stage(ran)["image"]}
        assert node.inputs["ami"] == "ami-0123456789abcdef0"


def test_a_builder_needs_its_way_out_and_its_rights_first(program: Program) -> None:
    ran = program()
    needs = ran[stage(ran)["builder"]].needs
    assert needs >= {"public-out", "edge-joined", "builder-out", "role-ssm"}


def test_making_the_image_has_time(program: Program) -> None:
    ran = program()
    assert ran[stage(ran)["image"]].timeouts["create"] == "90m"
    assert {node.timeouts["create"] for node in machines(ran)} == {"15m"}


def test_the_builder_lets_nobody_in_and_has_no_key(program: Program) -> None:
    ran = program()
    builder = ran[stage(ran)["builder"]].inputs
    assert builder["vpcSecurityGroupIds"] == ["builder-group-id"] and "keyName" not in builder
    assert "ssh_authorized_keys" not in unpacked(builder["userDataBase64"])
    assert yaml.safe_load(unpacked(builder["userDataBase64"]))["bootcmd"] == [["bash", "-c", gate.END]]
    assert builder["instanceInitiatedShutdownBehavior"] == "stop"
    assert builder["instanceType"] == "m7i.2xlarge"
    assert builder["ami"] == UBUNTU


def test_the_image_is_named_by_what_goes_into_it(program: Program, keys: dict[str, str]) -> None:
    ran = program()
    key = image.key(settings(keys))
    assert stage(ran) == {what: f"{what}-{key}" for what in ("builder", "baked", "sealed", "stopped", "image")}
    assert ran[f"image-{key}"].inputs["name"] == f"trainyard-aws-xeon-{STACK_ID}-{key}"
    assert ran[f"image-{key}"].inputs["tags"]["trainyard-image"] == key
    other = program(profile="native", collectives="gloo")
    assert stage(other)["image"] != stage(ran)["image"]


def test_another_bootstrap_is_another_image_beside_the_old_one(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = program()
    original = user_data._scripts
    monkeypatch.setattr(user_data, "_scripts", lambda *which: [*original(*which), ("new.sh", b"#!/bin/sh\n", "0755")])
    after = program()
    old, new = stage(before), stage(after)
    assert not set(old.values()) & set(new.values())
    assert after[new["image"]].inputs["name"] != before[old["image"]].inputs["name"]


def test_limits_and_a_newer_ubuntu_bake_nothing_again(program: Program) -> None:
    before, after = program(), program(maxHours=48, idleMinutes=30, owner="you", instanceType="m7i.16xlarge")
    assert stage(before) == stage(after)
    builder = after[stage(after)["builder"]]
    assert set(builder.ignore_changes) == {"ami", "instanceType", "associatePublicIpAddress", "userDataBase64"}


def test_the_snapshot_is_tagged_as_it_is_what_costs(program: Program) -> None:
    tags = {found.inputs["key"]: found.inputs["value"] for found in program().of("ec2/tag:Tag")}
    assert tags["trainyard-stack"] == STACK and tags["trainyard-owner"] == "me" and tags["trainyard-max-hours"] == "24"


def test_an_image_by_id_declares_no_builder(program: Program) -> None:
    ran = program(image=OURS)
    assert stage(ran) == {}
    assert not ran.of("Baked") and not ran.of("AmiFromInstance") and "builder-group" not in ran.declared
    assert {node.inputs["ami"] for node in machines(ran)} == {OURS}
    told = unpacked(machines(ran)[0].inputs["userDataBase64"])
    assert f"TRAINYARD_IMAGE={BAKED_FROM}\n" in told  # what its image.json says


@pytest.mark.parametrize(
    "name, why", [("ami-0ddddddddddddddd", "has no such image"), (FOREIGN, "was not baked by Trainyard")]
)
def test_an_image_that_is_not_ours_is_refused_before_anything_is_declared(
    program: Program, name: str, why: str
) -> None:
    assert why in refusal(program, image=name)


# --- the nodes ---


def test_nodes_keep_their_image_unless_asked(program: Program) -> None:
    assert {node.ignore_changes for node in machines(program())} == {
        ("ami", "userDataBase64", "capacityReservationSpecification")
    }
    assert {node.ignore_changes for node in machines(program(replaceNodes=True))} == {()}


def test_a_replaced_node_frees_its_address_first(program: Program) -> None:
    for node in machines(program()):
        assert node.delete_before_replace and node.inputs["userDataReplaceOnChange"] is True


def test_the_template_makes_the_machine(program: Program) -> None:
    template = one(program(), "LaunchTemplate").inputs
    assert template["instanceType"] == "m7i.8xlarge"
    assert template["cpuOptions"] == {"coreCount": 16, "threadsPerCore": 1}
    assert template["metadataOptions"] == {
        "httpEndpoint": "enabled",
        "httpTokens": "required",
        "httpPutResponseHopLimit": 1,
    }
    (disk,) = template["blockDeviceMappings"]
    assert disk["deviceName"] == "/dev/sda1"
    assert disk["ebs"] == {"volumeType": "gp3", "volumeSize": 250, "encrypted": "true", "deleteOnTermination": "true"}
    assert template["placement"] == {"groupName": f"trainyard-aws-xeon-{STACK_ID}"}
    assert template["instanceInitiatedShutdownBehavior"] == "terminate"
    assert "instanceMarketOptions" not in template and "imageId" not in template


def test_the_builders_disk_and_metadata_are_as_the_nodes(program: Program) -> None:
    ran = program()
    builder = ran[stage(ran)["builder"]].inputs
    assert builder["metadataOptions"]["httpTokens"] == "required"
    assert builder["rootBlockDevice"]["encrypted"] is True
    assert builder["rootBlockDevice"]["volumeSize"] <= 30, "a node's disk cannot be smaller than its image"


def test_all_nodes_are_asked_for_in_one_request_before_the_first_is_made(program: Program) -> None:
    ran = program()
    held = ran["reserved"].inputs
    assert (held["count"], held["type"], held["zone"]) == (3, "m7i.8xlarge", "use1-az6")
    assert ran["reserved"].property_needs["group"] == {"together"}
    assert ran["reserved"].property_needs["image"] == {stage(ran)["image"]}, "nothing is held while one is baked"
    assert {"public-out", "role-ssm", "operator-ssh"} <= ran["reserved"].needs
    for node in machines(ran):
        assert "reserved" in node.needs and "capacityReservationSpecification" not in node.inputs
    assert ran["released"].needs >= {"node1", "node2", "node3", "reserved"}
    assert held["tags"]["trainyard-stack"] == STACK


@pytest.mark.parametrize("changed", [{"spot": True}, {"nodes": 1}, {"capacityReservation": "none"}], ids=str)
def test_nothing_is_held_for_spot_for_one_node_or_where_it_is_not_wanted(
    program: Program, changed: dict[str, object]
) -> None:
    ran = program(**changed)
    assert "reserved" not in ran.declared and "released" not in ran.declared


@pytest.mark.parametrize("group", ["ml-group", ""])
def test_nodes_are_put_into_a_reservation_of_the_users_own(
    program: Program, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setattr(capacity, "given", lambda *_: capacity.Given(RESERVATION, group))
    ran = program(capacityReservation=RESERVATION)
    target = {"capacityReservationTarget": {"capacityReservationId": RESERVATION}}
    assert [node.inputs["capacityReservationSpecification"] for node in machines(ran)] == [target] * 3
    assert "reserved" not in ran.declared and ran.of("PlacementGroup") == []
    assert one(ran, "LaunchTemplate").inputs.get("placement") == ({"groupName": group} if group else None)
    for node in machines(ran):
        assert "capacityReservationSpecification" in node.ignore_changes, "EC2 changes it of a stopped machine only"
        assert node.replace_on_changes == ("capacityReservationSpecification",)
    assert aws_judge.declared(ran) == []


def test_nodes_are_together_in_a_cluster_placement_group(program: Program) -> None:
    assert one(program(), "PlacementGroup").inputs["strategy"] == "cluster"


def test_spot_nodes_end_when_they_are_wanted_back(program: Program) -> None:
    market = one(program(spot=True), "LaunchTemplate").inputs["instanceMarketOptions"]
    assert market["marketType"] == "spot" and "maxPrice" not in market["spotOptions"]
    assert market["spotOptions"] == {"spotInstanceType": "one-time", "instanceInterruptionBehavior": "terminate"}


def test_a_longer_life_or_another_owner_replaces_no_machine(program: Program) -> None:
    """Whatever changes the template makes other machines: nothing of the kind is in it."""
    before, after = program(), program(maxHours=48, owner="you", idleMinutes=0, replaceNodes=True)
    assert one(before, "LaunchTemplate").inputs == one(after, "LaunchTemplate").inputs
    assert after["node1"].inputs["volumeTags"]["trainyard-max-hours"] == "48"


def test_user_data_is_a_nodes_own_and_fits(program: Program, keys: dict[str, str]) -> None:
    ran = program()
    wanted = settings(keys)
    key = image.key(wanted)
    for found, (name, role) in zip(machines(ran), (("node1", "head"), ("node2", "worker")), strict=False):
        assert unpacked(found.inputs["userDataBase64"]) == user_data.for_node(wanted, key, name, role, baked=True)
    for found in ran.of("ec2/instance:Instance"):
        assert len(base64.b64decode(found.inputs["userDataBase64"])) <= 16 * 1024


def test_every_node_has_the_stacks_tags_on_its_disk(program: Program) -> None:
    for found in program().of("ec2/instance:Instance"):
        tags = found.inputs["volumeTags"]
        assert {tags["trainyard-stack"], tags["trainyard-owner"], tags["trainyard-max-hours"]} == {STACK, "me", "24"}


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
    told = budget["notifications"]
    assert {mail for alarm in told for mail in alarm["subscriberEmailAddresses"]} == {"me@example.org"}
    assert {alarm["notificationType"] for alarm in told} == {"ACTUAL", "FORECASTED"}


def skus(keys: dict[str, str], **changed: object) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in aws_xeon.bill(settings(keys, **changed)):
        sku = line.what.partition(":")[0]
        found[sku] = found.get(sku, 0) + line.count
    return found


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


# --- types and zones: our tables against EC2's own answers, as moto has recorded them ---


def recorded(name: str) -> Any:
    return json.loads(gzip.decompress(files("moto.ec2").joinpath("resources").joinpath(name).read_bytes()))


@pytest.mark.parametrize("known", machine_types.TYPES.values(), ids=lambda known: known.name)
def test_a_type_is_what_ec2_says(known: machine_types.InstanceType) -> None:
    said = recorded("instance_types.json.gz")[known.name]
    assert said["VCpuInfo"]["DefaultCores"] == known.cores
    assert said["MemoryInfo"]["SizeInMiB"] == known.memory_gb * 1024
    assert ("cluster" in said["PlacementGroupInfo"]["SupportedStrategies"]) == known.cluster
    assert 1 in said["VCpuInfo"]["ValidThreadsPerCore"]
    assert known.cores % known.numa_nodes == 0


def test_zones_are_those_of_their_region_everywhere(keys: dict[str, str]) -> None:
    folder = files("moto.ec2").joinpath("resources/instance_type_offerings/availability-zone-id")
    regions = [entry.name for entry in folder.iterdir() if entry.name.endswith(".json.gz")]
    assert len(regions) > 25
    for name in regions:
        region = name.removesuffix(".json.gz")
        ids = {entry["Location"] for entry in recorded(f"instance_type_offerings/availability-zone-id/{name}")}
        for zone in ids:
            assert zones.zone(settings(keys, region=region, zone=zone)) == zone


# --- what is refused ---


def refusal(program: Program, **changed: object) -> str:
    """The one line that it is refused with; nothing but the provider may be declared by then."""
    monitors: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(pulumi.RunError) as caught:
        original = Amazon.outputs
        patch.setattr(Amazon, "outputs", lambda self, args: monitors.append(args.typ) or original(self, args))
        program(**changed)
    assert set(monitors) <= {"pulumi:providers:aws", "pulumi-python:dynamic/trainyard:StackId"}
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"instanceType": "m9i.8xlarge"}, "instanceType = 'm9i.8xlarge': must be a size of m6i, m7i, m8i, r7iz"),
        ({"instanceType": "m7i.7xlarge"}, "instanceType = 'm7i.7xlarge': must be one of m7i.large, m7i.xlarge"),
        ({"instanceType": "m7i-flex.8xlarge"}, "a type that a cluster placement group takes; m7i.8xlarge is one"),
        ({"nodes": 60}, "cidr = '10.0.0.0/24': must be a network with room for 59 nodes behind the NAT gateway"),
        (
            {"nodes": 64, "publicNodes": "all", "cidr": "10.0.0.0/25"},
            "room for 64 public nodes; their subnet 10.0.0.0/26",
        ),
        ({"cidr": "10.0.0.0/27", "nodes": 1}, "must be a network of /16 to /26 on AWS"),
        ({"cidr": "10.0.0.0/8"}, "must be a network of /16 to /26 on AWS"),
        ({"zone": "usw2-az1"}, "zone = 'usw2-az1': must be the id of a zone of us-east-1, such as use1-az1"),
        ({"zone": "us-east-1a"}, "zone = 'us-east-1a': must be the id of a zone of us-east-1"),
        ({"zone": "use1-az3"}, f"does not offer m7i.8xlarge; set zone to one that does: {', '.join(ZONES)}"),
        ({"region": "eu-west-1", "zone": ""}, "zone = '': must be the id of a zone of eu-west-1, such as euw1-az1"),
        ({"region": "virginia"}, "region = 'virginia': must be an AWS region such as us-east-1"),
        ({"baseImage": "Canonical:ubuntu-24_04-lts:server:latest"}, "must be ami-... on AWS"),
        ({"stack": "a" * 33}, "stack = "),
        ({"adminCidr": "0.0.0.0/0"}, "adminCidr = '0.0.0.0/0'"),
        (
            {"capacityReservation": RESERVATION, "spot": True},
            "must be empty with spot: Spot nodes cannot be put into one",
        ),
        ({"adminCidr": "::/0"}, "adminCidr = '::/0'"),
        ({"adminCidr": ""}, "adminCidr = ''"),
        ({"owner": ""}, "owner = ''"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_before_anything_is_declared(
    program: Program, changed: dict[str, object], why: str
) -> None:
    assert why in refusal(program, **changed)


def test_a_kind_of_key_that_ec2_does_not_take_is_refused(program: Program, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(public_key("ecdsa-sha2-nistp256") + "\n")
    assert "must be a key of type ssh-ed25519 or ssh-rsa on AWS" in refusal(program, publicKey=tmp_path / "key.pub")


def test_user_data_that_is_too_large_is_refused() -> None:
    text = "".join(f"{number:x}" for number in range(40_000))
    with pytest.raises(UsageError, match=r"user data of the builder: \d+ bytes, compressed, and AWS takes 16384"):
        nodes.check_user_data(text, "the builder")


@pytest.mark.parametrize("name", ["m6i.4xlarge", "m6i.32xlarge"])
def test_a_type_without_amx_says_what_that_means(program: Program, name: str) -> None:
    (warning,) = program(instanceType=name, preview=True).warnings()
    assert name in warning and "bf16" in warning and "fp32" in warning


@pytest.mark.parametrize("name", ["m7i.8xlarge", "m8i.8xlarge", "r7iz.8xlarge"])
def test_a_type_with_amx_says_nothing(program: Program, name: str) -> None:
    assert program(instanceType=name, preview=True).warnings() == []


def test_a_settings_error_names_its_key(keys: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as caught:
        aws_xeon.check(settings(keys, instanceType="m7i-flex.large"))
    assert caught.value.key == "instanceType"


def test_the_stack_as_we_ship_it_has_a_price(keys: dict[str, str]) -> None:
    """By the table in the repository, for every family and for Spot."""
    for name in ("", "m6i.4xlarge", "m8i.8xlarge", "r7iz.8xlarge"):
        on_demand, spot = (table.total(aws_xeon.bill(settings(keys, instanceType=name, spot=s))) for s in (False, True))
        assert 0 < spot < on_demand
