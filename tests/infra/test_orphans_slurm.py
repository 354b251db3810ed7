"""What a stack with a ParallelCluster leaves on AWS, against a moto server: stacks, file system, policies, and what
ParallelCluster itself has made, which belongs to the stack around the cluster.

moto runs no custom resource: the stacks here are empty ones with the names and tags of the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import boto3
import moto_cloud
import pytest
from moto_cloud import Stack

from infra.clouds.aws import lustre, orphans
from infra.clouds.aws.place import INSIDE_TAG
from infra.clouds.live_resource import LiveResource
from infra.config.settings import Settings

pytestmark = pytest.mark.acceptance

YARD = Stack("yard", stack_id="0123abcd")
CLUSTER = f"trainyard-{YARD.unique}"
EMPTY = json.dumps({"Resources": {"Nothing": {"Type": "AWS::CloudFormation::WaitConditionHandle"}}})


@pytest.fixture
def settings(good: dict[str, str]) -> Settings:
    return moto_cloud.settings_of("aws-slurm", good["publicKey"])


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with moto_cloud.quick(monkeypatch) as endpoint:
        yield endpoint


def holding(name: str, inside: str = EMPTY) -> str:
    """A template with one nested stack, of the template `inside`."""
    boto3.client("s3").put_object(Bucket="templates", Key=name, Body=inside.encode())
    url = f"https://templates.s3.amazonaws.com/{name}"
    return json.dumps({"Resources": {name: {"Type": "AWS::CloudFormation::Stack", "Properties": {"TemplateURL": url}}}})


@pytest.fixture
def nested(account: str) -> None:
    """Stacks in stacks. moto makes and deletes them; CloudFormation says of each its parent and the root, too, and
    gives it the root's tags."""
    boto3.client("s3").create_bucket(Bucket="templates")

    def complete(parsed: dict[str, Any], **_: object) -> None:
        there = {item["StackName"]: item for item in parsed.get("Stacks", ())}
        for name in sorted(there):  # PARENT-NAME-RANDOM: after its parent
            if parent := there.get(name.rsplit("-", 2)[0]):
                root = parent.get("RootId", parent["StackId"])
                there[name] |= {"ParentId": parent["StackId"], "RootId": root, "Tags": parent["Tags"]}

    boto3.DEFAULT_SESSION.events.register("after-call.cloudformation.DescribeStacks", complete)


def make(*, cluster: bool = True, templates: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The stacks, the file system, a policy, a machine of the queue, a log: name -> id. `templates`: of the stacks that
    are not empty, by name."""
    cfn, ec2, made = boto3.client("cloudformation"), boto3.client("ec2"), {}
    own = [{"Key": "parallelcluster:cluster-name", "Value": CLUSTER}]
    stacks = {"provider": ("-pcluster", []), **({"around": ("-cluster", []), "cluster": ("", own)} if cluster else {})}
    for name, (end, more) in stacks.items():
        tags = [*YARD.tags(), *more]
        body = templates.get(name, EMPTY)
        made[name] = cfn.create_stack(StackName=f"{CLUSTER}{end}", TemplateBody=body, Tags=tags)["StackId"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    made["system"] = boto3.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
        Tags=YARD.tags(),
    )["FileSystem"]["FileSystemId"]
    allowed = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::x"}
    made["policy"] = boto3.client("iam").create_policy(
        PolicyName=f"{CLUSTER}-nodes",
        Path="/parallelcluster/",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}),
        Tags=YARD.tags(),
    )["Policy"]["Arn"]
    image = moto_cloud.image()
    made["node"] = ec2.run_instances(
        **{"ImageId": image, "InstanceType": "c5n.2xlarge", "MinCount": 1, "MaxCount": 1, "SubnetId": subnet},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [*YARD.tags("Compute"), *own]}],
    )["Instances"][0]["InstanceId"]
    of_log = {tag["Key"]: tag["Value"] for tag in YARD.tags()}
    made["log"] = "/aws/lambda/pcluster-cfn-0123"
    boto3.client("logs").create_log_group(logGroupName=made["log"], tags=of_log)
    return made


def claim(settings: Settings) -> Any:
    from infra.state.ownership import Claim

    return Claim(settings.stack, settings.cloud.owner, frozenset({"0123abcd"}))


def look(settings: Settings) -> dict[str, LiveResource]:
    """By its own id, without the kinds that moto cannot list."""
    return {live.id or live.owner: live for live in orphans.find(settings, claim=claim(settings)) if not live.unseen}


def test_what_parallelcluster_made_belongs_to_the_stack_around_it(account: str, settings: Settings) -> None:
    made = make()
    found = look(settings)
    assert {made[name] for name in ("provider", "around", "cluster", "system", "policy", "node", "log")} <= set(found)
    for name in ("cluster", "node"):
        assert found[made[name]].owner == made["around"], name
    known = [made[name] for name in ("provider", "around", "system", "policy", "log")]
    outside = [live.what for live in found.values() if not live.is_in(known)]
    assert not [what for what in outside if CLUSTER in what or made["node"] in what], "the state knows the cluster"


def test_what_costs_is_told(account: str, settings: Settings) -> None:
    made = make()
    found = look(settings)
    assert (found[made["node"]].usd_per_hour or 0) == pytest.approx(0.432)
    monthly = (found[made["system"]].usd_per_hour or 0) * 730
    assert monthly == pytest.approx(0.145 * lustre.GB)


def test_a_sweep_removes_the_cluster_before_all_else(account: str, settings: Settings) -> None:
    made = make()
    swept = orphans.sweep(settings, [], claim=claim(settings))
    order = [live.id or live.owner for live in swept]
    assert order[:4] == [made["around"], made["cluster"], made["provider"], made["system"]]
    assert not [
        live for live in look(settings).values() if live.kind in ("CloudFormation stack", "file system", "policy")
    ]
    assert made["log"] in order and made["policy"] in order


def test_a_stack_in_a_stack_is_its_roots_and_removed_with_it(nested: None, settings: Settings) -> None:
    """Removed by itself it would leave a root that CloudFormation cannot change any more, and cannot always delete."""
    deleted: list[str] = []
    boto3.DEFAULT_SESSION.events.register(
        "provide-client-params.cloudformation.DeleteStack", lambda params, **_: deleted.append(params["StackName"])
    )
    queues = holding("QueueGroup0", holding("Queue1"))
    made = make(templates={"provider": holding("PclusterPolicies"), "cluster": queues})
    stacks = boto3.client("cloudformation").describe_stacks()["Stacks"]
    inner = {item["StackName"].split("-")[-2]: item["StackId"] for item in stacks if "ParentId" in item}
    assert inner.keys() == {"PclusterPolicies", "QueueGroup0", "Queue1"} and len(stacks) == 6
    listed = {id_ for id_, live in look(settings).items() if live.kind == "CloudFormation stack"}
    assert listed == {made["provider"], made["around"], made["cluster"]}
    there = orphans.place_of(settings, claim(settings))
    holders = {name: there.holder({INSIDE_TAG: id_}) for name, id_ in inner.items()}  # of what was made in them
    roots = {"PclusterPolicies": made["provider"], "QueueGroup0": made["cluster"], "Queue1": made["cluster"]}
    assert holders == roots
    orphans.sweep(settings, [], claim=claim(settings))
    assert deleted == [made["around"], made["cluster"], made["provider"]]
    assert boto3.client("cloudformation").describe_stacks()["Stacks"] == []


def test_without_its_stack_a_machine_is_nobodys(account: str, settings: Settings) -> None:
    """The function died on its way: what it has left is an orphan, and swept."""
    made = make(cluster=False)
    assert look(settings)[made["node"]].owner == made["node"]
    orphans.sweep(settings, [made["provider"]], claim=claim(settings))
    assert made["node"] not in look(settings)


def test_another_kind_of_cluster_is_not_asked_for_its_kinds(account: str, settings: Settings) -> None:
    """An operator of aws-xeon needs no right to list file systems."""
    made = make()
    others = orphans.find(replace(settings, cluster="aws-xeon"), claim=claim(settings))
    assert not {live.kind for live in others} & {"CloudFormation stack", "policy"}
    assert made["system"] not in {live.owner for live in others if live.kind == "file system"}
