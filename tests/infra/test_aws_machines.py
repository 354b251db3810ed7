"""aws-xeon under mocks: the golden image, and the nodes that boot it."""

from __future__ import annotations

import base64

import aws_judge
import pytest
import yaml
from aws_mocks import BAKED_FROM, FOREIGN, OURS, RESERVATION, UBUNTU
from aws_xeon_program import STACK, Program, machines, one, refusal, settings, stage, unpacked
from program_recorder import STACK_ID

from infra import user_data
from infra.clouds.aws import builder as gate
from infra.clouds.aws import capacity, image

pytest_plugins = ["aws_xeon_fixtures"]


# --- the golden image ---


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


@pytest.mark.parametrize("profile", ["ipex", "native"])
def test_the_builders_user_data_fits_with_room_for_what_each_stack_has_of_its_own(
    program: Program, profile: str
) -> None:
    ran = program(profile=profile, collectives="gloo")
    size = len(base64.b64decode(ran[stage(ran)["builder"]].inputs["userDataBase64"]))
    assert size < aws_judge.USER_DATA_BYTES - 200


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
    after = program(shared=False)
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
    user_data = unpacked(machines(ran)[0].inputs["userDataBase64"])
    assert f"TRAINYARD_IMAGE={BAKED_FROM}\n" in user_data  # what its image.json says


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
    ran = program(capacityReservation=RESERVATION, shared=False)
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
