"""What a stack with an EKS cluster has and leaves on AWS, against a moto server: the cluster with its nodes, images, a
key, and what EKS and its controllers make, which belongs to the cluster while it is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import moto_cloud
import pytest
from moto_cloud import ACCOUNT, REGION, Stack

from infra.clouds.aws import eks, eks_sweep, orphans, removal
from infra.clouds.live_resource import LiveResource
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.state.ownership import Claim

pytestmark = pytest.mark.acceptance

YARD = Stack("yard", stack_id="0123abcd")
NAME = f"trainyard-{YARD.unique}-eks"
OWNED = [{"Key": f"kubernetes.io/cluster/{NAME}", "Value": "owned"}]
EVERY_KIND = (
    *("EKS cluster", "load balancer", "target group", "volume of a claim", "interface of EKS"),
    *("security group of EKS", "launch template of EKS", "log of a control plane", "image repository", "key"),
)


@pytest.fixture
def settings(good: dict[str, str]) -> Settings:
    mine = {"adminCidr": "203.0.113.7/32", "owner": "ada", "alertEmail": "ada@example.org"}
    raw = {**stack_file.read("aws-eks"), **mine, "publicKey": good["publicKey"]}
    return replace(load("aws-eks", raw), stack="yard", stack_id="0123abcd")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(removal, "POLL_S", 0.05)
    monkeypatch.setattr(eks_sweep, "SETTLES_S", 0.0)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with moto_cloud.aws(monkeypatch) as endpoint:
        yield endpoint


CLAIM = Claim("yard", "ada", frozenset({"0123abcd"}))


def make(*, cluster: bool = True) -> dict[str, str]:
    """A network with a cluster, and everything that is left of one; name -> id."""
    ec2, made = boto3.client("ec2"), {}
    made["vpc"] = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=YARD.tagged("vpc"))["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(
            VpcId=made["vpc"],
            CidrBlock=f"10.0.{zone}.0/24",
            AvailabilityZone=f"{REGION}{'ab'[zone]}",
            TagSpecifications=YARD.tagged("subnet"),
        )["Subnet"]["SubnetId"]
        for zone in range(2)
    ]
    if cluster:
        _cluster(made, subnets)
    _left(made, subnets)
    _own(made)
    return made


def _cluster(made: dict[str, str], subnets: list[str]) -> None:
    client, ec2 = boto3.client("eks"), boto3.client("ec2")
    role = f"arn:aws:iam::{ACCOUNT}:role/{NAME}-cluster"
    tags = {tag["Key"]: tag["Value"] for tag in YARD.tags()}
    network = {"subnetIds": subnets, "publicAccessCidrs": ["203.0.113.7/32"]}
    made["cluster"] = client.create_cluster(
        name=NAME, version="1.35", roleArn=role, resourcesVpcConfig=network, tags=tags
    )["cluster"]["name"]
    client.create_nodegroup(clusterName=NAME, nodegroupName="gpus", subnets=subnets, nodeRole=role, tags=tags)
    # A node as our launch template has it made: it carries the stack's tags and the cluster's name.
    own = [*YARD.tags("gpus"), {"Key": "trainyard-cluster", "Value": NAME}]
    image = moto_cloud.image()
    made["node"] = ec2.run_instances(
        **{"ImageId": image, "InstanceType": "m7i.large", "MinCount": 1, "MaxCount": 1, "SubnetId": subnets[0]},
        TagSpecifications=[{"ResourceType": kind, "Tags": own} for kind in ("instance", "volume")],
    )["Instances"][0]["InstanceId"]


def _left(made: dict[str, str], subnets: list[str]) -> None:
    """By EKS and its controllers, with their tags and none of ours."""
    ec2 = boto3.client("ec2")

    def tagged(kind: str, *tags: dict[str, str]) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": list(tags)}]

    made["volume"] = ec2.create_volume(
        AvailabilityZone=f"{REGION}a", Size=100, VolumeType="gp3", TagSpecifications=tagged("volume", *OWNED)
    )["VolumeId"]
    node = {"Key": "cluster.k8s.amazonaws.com/name", "Value": NAME}
    made["pods"] = ec2.create_network_interface(
        SubnetId=subnets[0], Description="aws-K8S-i-0123", TagSpecifications=tagged("network-interface", node)
    )["NetworkInterface"]["NetworkInterfaceId"]
    made["plane"] = ec2.create_network_interface(SubnetId=subnets[1], Description=f"Amazon EKS {NAME}")[
        "NetworkInterface"
    ]["NetworkInterfaceId"]
    made["group"] = ec2.create_security_group(
        GroupName=f"eks-cluster-sg-{NAME}-123",
        Description="EKS created security group",
        VpcId=made["vpc"],
        TagSpecifications=tagged("security-group", *OWNED),
    )["GroupId"]
    made["template"] = ec2.create_launch_template(
        LaunchTemplateName="eks-0123",
        LaunchTemplateData={"InstanceType": "m7i.large"},
        TagSpecifications=tagged("launch-template", {"Key": "eks:cluster-name", "Value": NAME}),
    )["LaunchTemplate"]["LaunchTemplateId"]
    balancing, of_ingress = boto3.client("elbv2"), [{"Key": "elbv2.k8s.aws/cluster", "Value": NAME}]
    made["balancer"] = balancing.create_load_balancer(
        Name="k8s-trainyard", Subnets=subnets, Type="network", Tags=of_ingress
    )["LoadBalancers"][0]["LoadBalancerArn"]
    made["targets"] = balancing.create_target_group(
        Name="k8s-targets", Protocol="TCP", Port=80, VpcId=made["vpc"], Tags=of_ingress
    )["TargetGroups"][0]["TargetGroupArn"]
    made["log"] = eks.log_group(NAME)
    boto3.client("logs").create_log_group(logGroupName=made["log"])


def _own(made: dict[str, str]) -> None:
    ecr, kms = boto3.client("ecr"), boto3.client("kms")
    made["images"] = f"trainyard-{YARD.unique}-images"
    ecr.create_repository(repositoryName=made["images"], tags=YARD.tags())
    manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"})
    ecr.put_image(repositoryName=made["images"], imageManifest=manifest, imageTag="one")
    tags = [{"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in YARD.tags()]
    made["key"] = kms.create_key(Description="secrets", Tags=tags)["KeyMetadata"]["KeyId"]


def another() -> list[str]:
    """What another cluster of somebody else's has left; its ids."""
    ec2, tags = boto3.client("ec2"), [{"Key": "kubernetes.io/cluster/trainyard-yard-ffffffff-eks", "Value": "owned"}]
    volume = ec2.create_volume(
        AvailabilityZone=f"{REGION}a", Size=1, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )["VolumeId"]
    boto3.client("logs").create_log_group(logGroupName=eks.log_group("trainyard-yard-ffffffff-eks"))
    return [volume, eks.log_group("trainyard-yard-ffffffff-eks")]


def look(settings: Settings) -> dict[str, LiveResource]:
    """By its own id, without the kinds that moto cannot list."""
    return {live.id or live.owner: live for live in orphans.find(settings, claim=CLAIM) if not live.unseen}


LEFT = ("volume", "pods", "plane", "group", "template", "balancer", "targets", "log")


def test_what_eks_made_belongs_to_the_cluster_while_it_is_there(account: str, settings: Settings) -> None:
    made = make()
    found = look(settings)
    assert {made[name] for name in ("cluster", "node", "images", "key", *LEFT)} <= set(found)
    for name in ("node", "volume", "pods", "group", "template", "balancer", "targets", "log"):
        assert found[made[name]].owner == NAME, name
    known = [made[name] for name in ("cluster", "images", "key", "vpc")]
    outside = {live.kind for live in found.values() if not live.is_in(known)}
    assert not outside & {"instance", "volume", *EVERY_KIND} - {"interface of EKS"}, "the state knows the cluster"


def test_kinds_can_be_listed(account: str, settings: Settings) -> None:
    make()
    unseen = {live.kind for live in orphans.find(settings, claim=CLAIM) if live.unseen}
    assert not unseen & set(EVERY_KIND)


def test_what_costs_is_told(account: str, settings: Settings) -> None:
    made = make()
    found = look(settings)
    assert found[made["cluster"]].usd_per_hour == pytest.approx(0.10)
    assert (found[made["volume"]].usd_per_hour or 0) * 730 == pytest.approx(100 * 0.08)
    assert (found[made["key"]].usd_per_hour or 0) * 730 == pytest.approx(1.0)
    assert found[made["balancer"]].usd_per_hour is None, "it costs, and the table lacks its price"


def test_a_sweep_removes_the_cluster_its_nodes_and_all_that_is_left(account: str, settings: Settings) -> None:
    made = make()
    others = another()
    swept = orphans.sweep(settings, [], claim=CLAIM)
    order = [live.id or live.owner for live in swept]
    assert order[0] == made["cluster"]
    assert boto3.client("eks").list_clusters()["clusters"] == []
    assert {made[name] for name in (*LEFT, "images", "key", "vpc")} <= set(order)
    assert not look(settings), "a key that is being deleted is no longer there"
    key = boto3.client("kms").describe_key(KeyId=made["key"])["KeyMetadata"]
    assert key["KeyState"] == "PendingDeletion"
    assert boto3.client("ec2").describe_volumes(VolumeIds=others[:1])["Volumes"]
    assert boto3.client("logs").describe_log_groups(logGroupNamePrefix=others[1])["logGroups"]


def test_destroy_removes_what_is_left_before_the_network(account: str, settings: Settings) -> None:
    """What Pulumi runs when the cluster is gone, and before it deletes subnets and security groups."""
    made, others = make(cluster=False), another()
    props = {"stack": "yard", "stack_id": "0123abcd", "owner": "ada", "region": REGION, "account": ACCOUNT}
    eks_sweep.SweptProvider().delete("", {**props, "partition": "aws"})
    found = look(settings)
    assert not {made[name] for name in LEFT} & set(found)
    assert made["vpc"] in found and made["images"] in found, "those are Pulumi's to remove"
    assert boto3.client("ec2").describe_volumes(VolumeIds=others[:1])["Volumes"]
    assert eks_sweep.sweep({**props, "partition": "aws"}) == [], "it may run twice"


def test_another_kind_of_cluster_is_not_asked_for_its_kinds(account: str, settings: Settings) -> None:
    """An operator of aws-xeon needs no right to list clusters or load balancers."""
    make()
    others = orphans.find(replace(settings, cluster="aws-xeon"), claim=CLAIM)
    assert not {live.kind for live in others} & set(EVERY_KIND)
