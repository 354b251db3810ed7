"""aws-xeon: types and zones against EC2's own answers, and what is refused before anything is declared."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from aws_mocks import RESERVATION, ZONES
from aws_xeon_program import Program, refusal, settings
from sample_inputs import public_key

from infra.clouds.aws import machine_types, nodes, zones
from infra.clusters import aws_xeon
from infra.config.values import SettingsError
from infra.errors import UsageError
from infra.prices import table

pytest_plugins = ["aws_xeon_fixtures"]


# --- types and zones: our tables against EC2's own answers, as moto has recorded them ---


def recorded(name: str) -> Any:
    return json.loads(gzip.decompress(files("moto.ec2").joinpath("resources").joinpath(name).read_bytes()))


@pytest.mark.parametrize("known", machine_types.TYPES.values(), ids=lambda known: known.name)
def test_a_type_is_what_ec2_says(known: machine_types.InstanceType) -> None:
    answer = recorded("instance_types.json.gz")[known.name]
    assert answer["VCpuInfo"]["DefaultCores"] == known.cores
    assert answer["MemoryInfo"]["SizeInMiB"] == known.memory_gb * 1024
    assert ("cluster" in answer["PlacementGroupInfo"]["SupportedStrategies"]) == known.cluster
    assert 1 in answer["VCpuInfo"]["ValidThreadsPerCore"]
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
        ({"region": "eu-west-3"}, "no price for m7i.8xlarge in eu-west-3: priced are: eu-west-1"),  # and not its zone
        ({"region": "eu-west-3", "zone": "euw3-az1"}, "no price for m7i.8xlarge in eu-west-3: priced are: eu-west-1"),
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
