"""ParallelCluster's own judgement of aws-slurm's configuration, in an environment of its own, against moto.

Its schema, all its validators, and its synthesis of the CloudFormation templates, on which the policy rules are run.
The part of `make faults`, as it takes minutes: a hundred packages the first time, and CDK, which needs Node.js.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pcluster_environment
import pytest
import synthesised
import yaml
from aws_xeon_program import settings
from bad_settings import as_text

from infra.clouds.aws import parallel_cluster, pcluster_config
from infra.config.settings import ROOT
from infra.policy import pack

pytest_plugins = ["aws_slurm_program"]
pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(1800)]
PARTS = ("head_subnet", "queue_subnet", "group", "key", "file_system", "bucket", "rights", "script")
EXPLAINED = {
    ("DetailedMonitoringValidator", "please set `Monitoring / DetailedMonitoring` to false."): "it warns of what it "
    "costs, which `fab cost` has",
    ("KeyPairValidator", "'KeyType'"): "moto's key pairs have no type",
    ("HeadNodeLaunchTemplateValidator", "The request must contain the parameter ebs"): "moto's dry run of a launch",
    ("ComputeResourceLaunchTemplateValidator", "The request must contain the parameter ebs"): "the same",
}
"""Findings that ask for no other configuration: (validator, what its message ends with) -> why."""


RESERVED: dict[str, Any] = {
    **{"CapacityReservationId": "cr-0123456789abcdef0", "State": "active", "InstancePlatform": "Linux/UNIX"},
    **{"InstanceType": "p3dn.24xlarge", "TotalInstanceCount": 2, "InstanceMatchCriteria": "targeted"},
}
GROUP = {"PlacementGroupArn": "arn:aws:ec2:us-east-1:123456789012:placement-group/room"}


def order(
    slurm_keys: dict[str, str], *, synthesise: bool = False, reservation: str = "", group: str = "", **changed: Any
) -> dict[str, Any]:
    """What the judge is asked. `reservation`, `group`: as in Parts."""
    own = {**slurm_keys, "image": pcluster_environment.OWN, **{key: as_text(value) for key, value in changed.items()}}
    wanted = replace(settings(own), stack="aws-slurm", stack_id="0123abcd")
    image = None if wanted.image == "bake" else "@image@"
    reserved = {"reservation": reservation, "group_name": group}
    parts = pcluster_config.Parts(**{name: f"@{name}@" for name in PARTS}, image=image, **reserved)
    return {
        "name": parallel_cluster.name(wanted),
        "configuration": pcluster_config.configuration(wanted, parts),
        "suppress": pcluster_config.suppressed(wanted),
        "image": pcluster_environment.OWN,
        "synthesise": synthesise,
    }


def unexplained(found: list[list[str]]) -> list[list[str]]:
    return [one for one in found if not any(one[0] == name and one[2].endswith(end) for name, end in EXPLAINED)]


@pytest.fixture(scope="module")
def program() -> Path:
    return pcluster_environment.python()


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes": 64, "cidr": "10.0.0.0/22", "spot": True, "monitoring": True, "idleMinutes": 0},
        {"instanceType": "p4d.24xlarge", "image": "bake"},
        {"instanceType": "g5.xlarge", "image": "bake", "nodes": 2},
    ],
    ids=["64 nodes on Spot", "p4d on ParallelCluster's image", "a type without EFA"],
)
def test_no_validator_finds_anything_unexplained(
    program: Path, slurm_keys: dict[str, str], changed: dict[str, Any]
) -> None:
    assert unexplained(pcluster_environment.judge(program, order(slurm_keys, **changed))["findings"]) == []


def in_a_reservation(keys: dict[str, str], group: str = "", **facts: Any) -> dict[str, Any]:
    """Two p3dn in a capacity reservation, of which EC2 says these `facts`, too."""
    asked = order(keys, nodes=3, reservation=RESERVED["CapacityReservationId"], group=group)
    return {**asked, "reservation": {**RESERVED, **(GROUP if group else {}), **facts}}


@pytest.mark.parametrize("group", ["", "room"], ids=["outside of a placement group", "in one"])
def test_a_queue_in_a_capacity_reservation_is_taken(program: Path, slurm_keys: dict[str, str], group: str) -> None:
    asked = in_a_reservation(slurm_keys, group)
    queue = asked["configuration"]["Scheduling"]["SlurmQueues"][0]
    assert "CapacityReservationTarget" in queue["ComputeResources"][0]
    found = unexplained(pcluster_environment.judge(program, asked)["findings"])
    # One made outside of a placement group cannot be used inside of one.
    told = [] if group else [("EfaPlacementGroupValidator", "WARNING", "Placement group is disabled")]
    assert [(name, level, message[:27]) for name, level, message in found] == told


def test_a_reservation_that_the_queue_does_not_fit_into_is_found(program: Path, slurm_keys: dict[str, str]) -> None:
    asked = in_a_reservation(slurm_keys, "room", TotalInstanceCount=1)
    (found,) = unexplained(pcluster_environment.judge(program, asked)["findings"])
    assert found[:2] == ["CapacityReservationSizeValidator", "ERROR"]


def stringified(value: Any) -> Any:
    """As CloudFormation gives a custom resource its properties: all numbers and booleans are text.
    https://github.com/aws-cloudformation/cloudformation-coverage-roadmap/issues/1037"""
    match value:
        case dict():
            return {key: stringified(each) for key, each in value.items()}
        case list():
            return [stringified(each) for each in value]
        case bool():
            return str(value).lower()
    return str(value)


def test_what_cloudformation_makes_of_it_is_the_same_configuration(program: Path, slurm_keys: dict[str, str]) -> None:
    plain = order(slurm_keys, idleMinutes=0, monitoring=True)
    text = {**plain, "configuration": stringified(plain["configuration"])}
    queue = text["configuration"]["Scheduling"]["SlurmQueues"][0]
    assert queue["ComputeResources"][0]["MaxCount"] == "2" and queue["Networking"]["AssignPublicIp"] == "false"
    one, other = (pcluster_environment.judge(program, asked) for asked in (plain, text))
    assert unexplained(other["findings"]) == [] and other["findings"] == one["findings"]
    assert other["read"] == one["read"], "numbers are numbers, and false is not a text that is true"


def test_the_suppressed_validator_is_needed_and_refuses_p3dn_for_its_driver_alone(
    program: Path, slurm_keys: dict[str, str]
) -> None:
    answer = pcluster_environment.judge(program, {**order(slurm_keys), "suppress": []})
    (found,) = unexplained(answer["findings"])
    assert found[0] == pcluster_config.KNOWN_SAFE.removeprefix("type:") and "OpenRM" in found[2]


def test_the_judge_finds_what_is_wrong(program: Path, slurm_keys: dict[str, str]) -> None:
    wrong = order(slurm_keys)
    queue = wrong["configuration"]["Scheduling"]["SlurmQueues"][0]
    queue["ComputeResources"][0]["InstanceType"] = "m5.xlarge"
    found = unexplained(pcluster_environment.judge(program, wrong)["findings"])
    assert any(name.startswith("Efa") and level == "ERROR" for name, level, _ in found), found


def test_the_image_file_is_pclusters(program: Path) -> None:
    text = (ROOT / "stacks/aws-slurm-image.yaml").read_text()
    answer = pcluster_environment.judge(program, {"image_configuration": yaml.safe_load(text)})
    # moto has no Image Builder, so the parent image cannot be looked up there.
    wrong = [one for one in answer["findings"] if not one[2].startswith("Invalid image 'arn:aws:imagebuilder:")]
    assert [one for one in wrong if one[1] == "ERROR"] == [], wrong


PARALLELCLUSTERS = {
    "iam-no-stars": "its head, queue and functions name resources by their form: what they will be called is not known",
    "roles-for-this-account": "its functions' roles trust Lambda without a condition",
    "metadata-one-hop": "it has no setting for the hops; the tokens of IMDSv2 it requires",
}
"""Rules that what ParallelCluster itself makes does not keep, and why nothing can be done from here."""


def test_the_policy_rules_hold_for_what_parallelcluster_makes(program: Path, slurm_keys: dict[str, str]) -> None:
    if not shutil.which("node"):
        pytest.skip(
            "no Node.js on this machine, which ParallelCluster makes its templates with: apt-get install nodejs"
        )
    asked = order(slurm_keys, synthesise=True)
    answer = pcluster_environment.judge(program, asked)
    assert unexplained(answer["findings"]) == []
    tags = {tag["Key"]: tag["Value"] for tag in asked["configuration"]["Tags"]}
    resources = synthesised.resources(answer["templates"], tags)
    every = [one["Type"] for template in answer["templates"].values() for one in template["Resources"].values()]
    assert every.count("AWS::Route53::HostedZone") == 1, "the bill has one"
    assert {one.name for one in resources} >= {"HeadNode", "HeadNodeLaunchTemplate", "RoleHeadNode"}
    broken: dict[str, list[str]] = {}
    for one in resources:
        for finding in pack.of_resource(one):
            broken.setdefault(finding.rule, []).append(f"{one.name}: {finding.what}")
    assert set(broken) <= set(PARALLELCLUSTERS), broken
