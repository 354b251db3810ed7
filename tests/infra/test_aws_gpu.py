"""aws-gpu under mocks: EFA's interfaces and rules, the addresses of nodes with several cards, the image, the money."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import aws_judge
import pytest
from aws_mocks import RESERVATION, UBUNTU, Amazon
from aws_xeon_program import OWN, cent, machines, one, stage, unpacked
from bad_settings import as_text
from program_recorder import Ran
from recorded_runs import RecordedRuns

from infra.clouds.aws import api, image, machine_types, quota
from infra.clusters import aws_gpu
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.config.values import SettingsError
from infra.prices import table

STACK = "aws-gpu"
TYPES = machine_types.GPU_TYPES
Program = Callable[..., Ran]
_RUNS = RecordedRuns()


@pytest.fixture
def keys(key_file: Path) -> dict[str, str]:
    return {**stack_file.read(STACK), "publicKey": str(key_file), **OWN}


@pytest.fixture
def program(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr(table, "line", cent)

    def of_gpus(*, shared: bool = True, **changed: object) -> Ran:
        raw = {**keys, **{key: as_text(value) for key, value in changed.items()}}
        return _RUNS.run(raw, Amazon(), stack=STACK, shared=shared)

    return of_gpus


def settings(keys: dict[str, str], **changed: object) -> Settings:
    return load(STACK, {**keys, **{key: as_text(value) for key, value in changed.items()}})


def templates(ran: Ran) -> list[dict[str, Any]]:
    return [found.inputs for found in ran.of("ec2/launchTemplate:LaunchTemplate")]


# --- the table, against EC2's own answers as moto has recorded them ---


@pytest.mark.parametrize("known", TYPES.values(), ids=lambda known: known.name)
def test_a_type_is_what_ec2_says(known: machine_types.InstanceType) -> None:
    path = files("moto.ec2").joinpath("resources/instance_types.json.gz")
    answer = json.loads(gzip.decompress(path.read_bytes()))[known.name]
    (gpus,) = answer["GpuInfo"]["Gpus"]
    network = answer["NetworkInfo"]
    assert (answer["VCpuInfo"]["DefaultCores"], answer["MemoryInfo"]["SizeInMiB"]) == (
        known.cores,
        known.memory_gb * 1024,
    )
    assert (gpus["Count"], gpus["Name"]) == (known.gpus, MODELS[known.name.partition(".")[0]][0])
    assert gpus["MemoryInfo"]["SizeInMiB"] == known.gpu_memory_gb * 1024
    assert known.gpu_architecture == MODELS[known.name.partition(".")[0]][1]
    assert network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0) == known.efa_cards
    if known.efa_cards:
        cards = network["NetworkCards"]
        assert all("efa-only" in card["InterfaceTypes"] for card in cards) and len(cards) == known.efa_cards
        assert sum(card["PeakBandwidthInGbps"] for card in cards) == known.efa_gbps
    assert "cluster" in answer["PlacementGroupInfo"]["SupportedStrategies"]
    assert (1 in answer["VCpuInfo"].get("ValidThreadsPerCore", [])) == known.cpu_options
    assert known.cores % known.numa_nodes == 0 and known.slots == known.gpus


MODELS = {
    **{"p3dn": ("V100", "sm_70"), "p4d": ("A100", "sm_80"), "p4de": ("A100", "sm_80")},
    **{"p5": ("H100", "sm_90"), "p5en": ("H200", "sm_90"), "g5": ("A10G", "sm_86"), "g6": ("L4", "sm_89")},
}
"""https://developer.nvidia.com/cuda-gpus"""


def test_every_type_has_a_price_where_the_stack_is() -> None:
    for region in ("us-east-1", "us-west-2"):
        for name in TYPES:
            assert table.line("aws", region, name).usd_per_hour > 0.8
    assert table.line("aws", "us-east-1", "p3dn.24xlarge").usd_per_hour == pytest.approx(31.212)


# --- EFA ---


def test_p3dn_has_one_efa_interface_with_the_nodes_own_address(program: Program) -> None:
    ran = program()
    found = templates(ran)
    assert [template["name"].rpartition("-")[2] for template in found] == ["node1", "node2"]
    (head,), (worker,) = (template["networkInterfaces"] for template in found)
    own = {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "efa", "deleteOnTermination": "true"}
    assert head == {
        **own,
        "subnetId": "public-subnet-id",
        "securityGroups": ["nodes-group-id"],
        "privateIpAddress": "10.0.0.10",
        "associatePublicIpAddress": "true",
    }
    assert worker["privateIpAddress"] == "10.0.0.139" and worker["associatePublicIpAddress"] == "false"
    for node in machines(ran):  # EC2 refuses a place in the network beside interfaces
        assert not {"subnetId", "privateIp", "associatePublicIpAddress", "vpcSecurityGroupIds"} & set(node.inputs)
    assert not ran.of("ec2/eipAssociation:EipAssociation")


@pytest.mark.parametrize(("name", "cards"), [("p4d.24xlarge", 4), ("p5.48xlarge", 32), ("p5en.48xlarge", 16)])
def test_every_further_card_has_efa_alone(program: Program, name: str, cards: int) -> None:
    for template in templates(program(instanceType=name)):
        first, *further = template["networkInterfaces"]
        assert first["interfaceType"] == "efa" and "associatePublicIpAddress" not in first
        assert [each["networkCardIndex"] for each in further] == list(range(1, cards))
        assert {(each["interfaceType"], each["deviceIndex"]) for each in further} == {("efa-only", 1)}
        assert not any("privateIpAddress" in each for each in further)


def test_a_public_node_with_several_cards_has_an_elastic_address(program: Program) -> None:
    ran = program(instanceType="p4d.24xlarge")
    (joined,) = ran.of("ec2/eipAssociation:EipAssociation")
    assert joined.inputs["allocationId"] == "node1-address-id" and joined.needs >= {"node1", "node1-address"}
    assert joined.name in ran["node1-host-key"].needs, "Systems Manager reaches the head only then"
    assert ran.cluster.head.ssh_host == "203.0.113.99"
    everywhere = program(instanceType="p4d.24xlarge", publicNodes="all")
    assert len(everywhere.of("ec2/eipAssociation:EipAssociation")) == 2
    assert not everywhere.cluster.jump_host


def test_efa_may_leave_the_group_only_by_a_rule_for_the_group(program: Program) -> None:
    out = program()["nodes-to-each-other"].inputs
    assert (out["securityGroupId"], out["referencedSecurityGroupId"], out["ipProtocol"]) == (
        *("nodes-group-id", "nodes-group-id"),
        "-1",
    )
    assert "nodes-to-each-other" in machines(program())[0].needs
    without = program(instanceType="g5.xlarge")
    assert "nodes-to-each-other" not in without.declared
    (shared,) = templates(without)
    assert "networkInterfaces" not in shared and "cpuOptions" not in shared
    assert machines(without)[0].inputs["privateIp"] == "10.0.0.10"


def test_nodes_are_in_one_placement_group(program: Program) -> None:
    group = one(program(), "ec2/placementGroup:PlacementGroup").inputs
    assert group["strategy"] == "cluster"
    assert all(template["placement"]["groupName"] for template in templates(program()))


@pytest.mark.parametrize("name", ["p4d.24xlarge", "p5.48xlarge", "g5.xlarge", "g6.48xlarge"])
def test_all_of_it_has_forms_that_aws_accepts(program: Program, name: str) -> None:
    ran = program(instanceType=name, publicNodes="all", spot=True)
    assert aws_judge.declared(ran) == [] and ran.plain_dicts == []


# --- capacity ---


@pytest.mark.parametrize("kind", ["default", "capacity-block"])
def test_a_reservation_or_a_block_is_used_by_its_id(
    program: Program, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    reservation = {
        **{"CapacityReservationId": RESERVATION, "State": "active", "InstanceType": "p4d.24xlarge"},
        **{"AvailabilityZoneId": "use1-az6", "InstancePlatform": "Linux/UNIX", "AvailableInstanceCount": 2},
        "ReservationType": kind,
    }
    monkeypatch.setattr(api, "client", lambda *_: None)
    monkeypatch.setattr(api, "instances", lambda *_: [])
    monkeypatch.setattr(api, "pages", lambda *_args, **_kw: [reservation])
    ran = program(instanceType="p4d.24xlarge", capacityReservation=RESERVATION, shared=False)
    target = machines(ran)[0].inputs["capacityReservationSpecification"]["capacityReservationTarget"]
    assert target == {"capacityReservationId": RESERVATION}
    markets = [template.get("instanceMarketOptions") for template in templates(ran)]
    assert markets == [{"marketType": "capacity-block"} if kind == "capacity-block" else None] * 2
    assert aws_judge.declared(ran) == []


@pytest.mark.parametrize(
    ("name", "spot", "code"),
    [
        ("p3dn.24xlarge", False, "L-417A185B"),
        ("p3dn.24xlarge", True, "L-7212CCBC"),
        ("g5.xlarge", False, "L-DB2E81BA"),
        ("m7i.8xlarge", False, "L-1216C47A"),
    ],
)
def test_a_family_counts_in_its_own_limit(name: str, spot: bool, code: str) -> None:
    limit = quota.limit_of(name, spot)
    assert limit is not None and limit.code(spot) == code


def test_the_builder_counts_in_the_standard_limit_beside_nodes_of_another(
    keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, dict[str, int]]] = []
    monkeypatch.setattr(
        quota, "_quota", lambda _s, limit, spot, who, needed: asked.append((limit.code(spot), who, dict(needed))) or who
    )
    assert [finding.check for finding in quota.findings(settings(keys))] == ["quota", "builder"]
    assert asked == [
        ("L-417A185B", "2 nodes need", {"p3dn.24xlarge": 2}),
        ("L-1216C47A", f"the image's builder ({image.GPU_BUILDER}) needs", {image.GPU_BUILDER: 1}),
    ]
    (nodes, builder) = quota.findings(settings(keys, instanceType="p5.48xlarge", spot=True))
    assert (nodes.state, builder.check) == ("undecided", "builder")


# --- the image and what the nodes are told ---


def test_the_image_is_baked_without_a_gpu_for_the_gpus_of_the_nodes(program: Program, keys: dict[str, str]) -> None:
    ran = program()
    builder = ran[stage(ran)["builder"]].inputs
    assert (builder["instanceType"], builder["ami"]) == (image.GPU_BUILDER, UBUNTU)
    assert builder["rootBlockDevice"]["volumeSize"] == image.CUDA_DISK_GB
    text = unpacked(builder["userDataBase64"])
    for line in ("PROFILE=cuda", "GPU_ARCHITECTURE=sm_70", "GPUS=8", "EFA_CARDS=1", "NVLINK=true", "GPU_RDMA=false"):
        assert f"TRAINYARD_{line}\n" in text
    # What AWS's nodes run is the same for both kinds of cluster.
    assert "TRAINYARD_CLUSTER=aws-xeon\n" in text
    # The scripts, which are too large for user data, come through Systems Manager, which then starts them.
    assert "/opt/trainyard/bootstrap" not in text and "runcmd" not in text and "bootcmd" in text
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(ran[stage(ran)["baked"]].inputs["scripts"]))) as brought:
        assert {"bootstrap.sh", "aws-xeon/notice.py", "steps/image/25-driver", "gpus.py"} <= set(brought.getnames())
    each = {
        name: image.key(settings(keys, instanceType=name))
        for name in ("p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge")
    }
    assert each["p4d.24xlarge"] == each["p4de.24xlarge"] != each["p3dn.24xlarge"]


@pytest.mark.parametrize("name", TYPES)
def test_user_data_fits(keys: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "line", cent)
    aws_gpu.check(settings(keys, instanceType=name))  # refuses what is over 16 KB


def test_the_inventory_has_what_launch_and_check_need(program: Program) -> None:
    cluster = program().cluster
    for node in cluster.nodes:
        assert (node.slots, node.cores_per_slot, node.gpus, node.gpu_architecture) == (8, 6, 8, "sm_70")
        assert (node.efa_cards, node.efa_gbps, node.nvlink_gb_per_s) == (1, 100, 150)
    assert cluster.launcher == "mpirun"


# --- what is refused, and the money ---


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"profile": "native"}, "profile = 'native': must be cuda on cluster aws-gpu, whose nodes have GPUs"),
        ({"collectives": "ccl"}, "collectives = 'ccl': must be gloo with profile cuda: GPUs talk through NCCL"),
        ({"instanceType": "m7i.8xlarge"}, "such as p3dn.24xlarge; it is one of cluster aws-xeon"),
        ({"instanceType": "p3dn.48xlarge"}, "must be one of p3dn.24xlarge"),
        ({"diskGb": 50}, "diskGb = 50: must be at least 60, the size of its image, with profile cuda"),
        (
            {"region": "eu-west-1", "zone": "euw1-az1", "instanceType": "p5.48xlarge"},
            "no price for p5.48xlarge in eu-west-1",
        ),
        ({"region": "eu-west-3"}, "no price for p3dn.24xlarge in eu-west-3"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(keys: dict[str, str], changed: dict[str, object], why: str) -> None:
    with pytest.raises(Exception) as caught:
        aws_gpu.check(settings(keys, **changed))
    assert why in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_profile_cuda_is_for_gpus_alone(key_file: Path) -> None:
    for stack in ("local", "aws-xeon"):
        raw = {**stack_file.read(stack), **OWN, "publicKey": str(key_file), "profile": "cuda", "collectives": "gloo"}
        with pytest.raises(
            SettingsError, match=r"profile = 'cuda': must be native or ipex: cuda is for nodes with GPUs"
        ):
            load(stack, raw)


def test_the_bill_has_everything_that_is_declared(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    hourly = table.total(aws_gpu.bill(settings(keys)))
    assert 62.4 < hourly < 63
    monkeypatch.setattr(table, "line", cent)
    lines = {line.what.partition(":")[0]: line.count for line in aws_gpu.bill(settings(keys, publicNodes="all"))}
    assert (lines["p3dn.24xlarge"], lines["public-ipv4"], lines["ebs-snapshot-gb-month"]) == (2, 2, 30)
