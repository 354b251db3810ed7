"""A whole AWS on loopback: moto's server, and a stack's worth of things made in it as Pulumi's provider would."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import aws_judge
import boto3
import botocore.session
import moto.backends
import moto.core.responses
import pytest
from moto.server import ThreadedMotoServer

from infra.clouds.aws import api, removal
from infra.config import stack_file
from infra.config.settings import Settings, load

REGION = "us-east-1"
ACCOUNT = "123456789012"
_IMAGES = Path(__file__).with_name("moto_images.json")
"""The images that every account sees. Moto's own are 1,301, which it makes anew for each region and test, each with a
snapshot, and looks through whenever it is asked for any: most of the time of an audit."""
# Moto finds these out anew for each request, which is a fifth of its time: what folders of services it has, and what a
# class can do.
_SERVICES = tuple(moto.backends.list_of_moto_modules())
moto.backends.list_of_moto_modules = lambda: _SERVICES
moto.core.responses.method_names_from_class = cache(moto.core.responses.method_names_from_class)  # type: ignore[attr-defined]


@cache
def _service_models() -> Any:
    """What reads botocore's descriptions of the services and keeps them: each is megabytes of JSON, which every session
    would read again."""
    return botocore.session.Session().get_component("data_loader")


@cache
def image(region: str = REGION) -> str:
    """An image of Amazon's that every account has."""
    by_name = {"Name": "name", "Values": ["amzn-ami-hvm-2017.09.1.20171103-x86_64-gp2"]}
    (found,) = boto3.client("ec2", region_name=region).describe_images(Owners=["amazon"], Filters=[by_name])["Images"]
    return str(found["ImageId"])


def start_session() -> None:
    """Give boto3 a default session whose calls are judged: an earlier one remembers its credentials and endpoints."""
    boto3.setup_default_session()
    boto3.DEFAULT_SESSION._session.register_component("data_loader", _service_models())
    aws_judge.watch(boto3.DEFAULT_SESSION)
    api.client.cache_clear()


@contextmanager
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of an empty account; boto3 of this process and of its children talks to nothing else."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        given = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        monkeypatch.setenv("MOTO_AMIS_PATH", str(_IMAGES))
        for name, value in {**given, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        start_session()
        # One server process has one memory: what an earlier test made is still in it.
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")).close()
        yield endpoint
    finally:
        Thread(target=server.stop, daemon=True).start()  # it takes half a second, which the next test need not wait for


@contextmanager
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same; what waits, waits as briefly as it can."""
    monkeypatch.setattr(removal, "POLL_S", 0.05)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with aws(monkeypatch) as endpoint:
        yield endpoint


def settings_of(kind: str, public_key: str) -> Settings:
    """The settings of a stack `yard` of a kind, with what its file leaves to its user."""
    mine = {"adminCidr": "203.0.113.7/32", "owner": "ada", "alertEmail": "ada@example.org", "publicKey": public_key}
    return replace(load(kind, {**stack_file.read(kind), **mine}), stack="yard")


@dataclass(frozen=True)
class Stack:
    """A stack as its tags and names have it."""

    name: str
    owner: str = "ada"
    stack_id: str = ""
    region: str = REGION
    machine: str = "m7i.8xlarge"

    @property
    def unique(self) -> str:
        return f"{self.name}-{self.stack_id}" if self.stack_id else self.name

    def client(self, service: str) -> Any:
        return boto3.client(service, region_name=self.region)

    def tags(self, name: str = "") -> list[dict[str, str]]:
        wanted = {"trainyard-stack": self.name, "trainyard-owner": self.owner}
        wanted |= {"trainyard-id": self.stack_id} if self.stack_id else {}
        wanted |= {"Name": name} if name else {}
        return [{"Key": key, "Value": value} for key, value in wanted.items()]

    def tagged(self, kind: str, name: str = "") -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": self.tags(name)}]


def tagged(kind: str, stack: str, name: str = "") -> list[dict[str, Any]]:
    return Stack(stack).tagged(kind, name)


def make_stack(stack: str | Stack) -> dict[str, str]:
    """Everything that `up` makes on AWS and moto knows; name -> id as Pulumi's state has it."""
    stack = stack if isinstance(stack, Stack) else Stack(stack)
    ec2, made = stack.client("ec2"), {}
    made["vpc"] = vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=stack.tagged("vpc"))["Vpc"]["VpcId"]
    made["subnet"] = subnet = ec2.create_subnet(
        VpcId=vpc,
        CidrBlock="10.0.0.0/24",
        AvailabilityZone=f"{stack.region}b",
        TagSpecifications=stack.tagged("subnet"),
    )["Subnet"]["SubnetId"]
    made["gateway"] = gateway = ec2.create_internet_gateway(TagSpecifications=stack.tagged("internet-gateway"))[
        "InternetGateway"
    ]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    made["table"] = table = ec2.create_route_table(VpcId=vpc, TagSpecifications=stack.tagged("route-table"))[
        "RouteTable"
    ]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    made["endpoint"] = ec2.create_vpc_endpoint(
        VpcId=vpc,
        VpcEndpointType="Gateway",
        ServiceName=f"com.amazonaws.{stack.region}.s3",
        RouteTableIds=[table],
        TagSpecifications=stack.tagged("vpc-endpoint"),
    )["VpcEndpoint"]["VpcEndpointId"]
    _groups(ec2, made, stack)
    _gateways(ec2, made, stack)
    _machines(ec2, made, stack)
    _access(made, stack)
    _bucket(made, stack)
    return made


def _groups(ec2: Any, made: dict[str, str], stack: Stack) -> None:
    """Two security groups that name each other, which neither of them survives alone; and the network's own, closed
    and tagged by `up`, which is no id to remove: it goes with the network."""
    wanted = [{"Name": "vpc-id", "Values": [made["vpc"]]}, {"Name": "group-name", "Values": ["default"]}]
    (default,) = ec2.describe_security_groups(Filters=wanted)["SecurityGroups"]
    ec2.create_tags(Resources=[default["GroupId"]], Tags=stack.tags())
    for name in ("group", "other-group"):
        made[name] = ec2.create_security_group(
            GroupName=f"trainyard-{stack.unique}-{name}",
            Description="nodes",
            VpcId=made["vpc"],
            TagSpecifications=stack.tagged("security-group"),
        )["GroupId"]
    for one, other in (("group", "other-group"), ("other-group", "group")):
        pairs = [{"GroupId": made[other]}]
        ec2.authorize_security_group_ingress(
            GroupId=made[one], IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": pairs}]
        )


def _gateways(ec2: Any, made: dict[str, str], stack: Stack) -> None:
    for name in ("address", "nat-address"):
        made[name] = ec2.allocate_address(Domain="vpc", TagSpecifications=stack.tagged("elastic-ip"))["AllocationId"]
    made["nat"] = ec2.create_nat_gateway(
        SubnetId=made["subnet"], AllocationId=made["nat-address"], TagSpecifications=stack.tagged("natgateway")
    )["NatGateway"]["NatGatewayId"]


def _machines(ec2: Any, made: dict[str, str], stack: Stack) -> None:
    made["key"] = f"trainyard-{stack.unique}-key"
    ec2.create_key_pair(KeyName=made["key"], TagSpecifications=stack.tagged("key-pair"))
    base = image(stack.region)
    for name in ("builder", "node1", "node2"):
        made[name] = ec2.run_instances(
            ImageId=base,
            InstanceType=stack.machine,
            MinCount=1,
            MaxCount=1,
            SubnetId=made["subnet"],
            SecurityGroupIds=[made["group"]],
            TagSpecifications=stack.tagged("instance", name) + stack.tagged("volume", name),
        )["Instances"][0]["InstanceId"]
    ec2.associate_address(AllocationId=made["address"], InstanceId=made["node1"])
    made["image"] = ec2.create_image(
        InstanceId=made["builder"], Name=f"trainyard-{stack.unique}-0123", TagSpecifications=stack.tagged("image")
    )["ImageId"]
    ec2.stop_instances(InstanceIds=[made["builder"]])
    made["template"] = ec2.create_launch_template(
        LaunchTemplateName=f"trainyard-{stack.unique}-node",
        LaunchTemplateData={"InstanceType": stack.machine, "ImageId": made["image"]},
        TagSpecifications=stack.tagged("launch-template"),
    )["LaunchTemplate"]["LaunchTemplateId"]
    made["disk"] = ec2.create_volume(
        AvailabilityZone=f"{stack.region}b", Size=100, VolumeType="gp3", TagSpecifications=stack.tagged("volume")
    )["VolumeId"]
    made["copy"] = ec2.create_snapshot(VolumeId=made["disk"], TagSpecifications=stack.tagged("snapshot"))["SnapshotId"]


def _access(made: dict[str, str], stack: Stack) -> None:
    iam, role = stack.client("iam"), f"trainyard-{stack.unique}-node"
    trust = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole"}]}'
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust, Tags=stack.tags())
    allowed = {
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": f"arn:aws:s3:::trainyard-{stack.unique}-123456789012",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_role_policy(RoleName=role, PolicyName="bucket", PolicyDocument=policy)
    iam.create_instance_profile(InstanceProfileName=role, Tags=stack.tags())
    iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
    made["role"] = role
    stack.client("logs").create_log_group(
        logGroupName=f"trainyard-{stack.unique}-flow", tags={tag["Key"]: tag["Value"] for tag in stack.tags()}
    )
    made["log"] = f"trainyard-{stack.unique}-flow"


def _bucket(made: dict[str, str], stack: Stack) -> None:
    s3, bucket = stack.client("s3"), f"trainyard-{stack.unique}-123456789012"
    elsewhere = {"CreateBucketConfiguration": {"LocationConstraint": stack.region}} if stack.region != REGION else {}
    s3.create_bucket(Bucket=bucket, **elsewhere)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": stack.tags()})
    made["bucket"] = bucket


def fill(bucket: str) -> None:
    """Two versions of one object, a deleted one, and an upload that never ended."""
    s3 = boto3.client("s3")
    for text in (b"first", b"second"):
        s3.put_object(Bucket=bucket, Key="data/train.bin", Body=text)
    s3.put_object(Bucket=bucket, Key="gone", Body=b"x")
    s3.delete_object(Bucket=bucket, Key="gone")
    s3.create_multipart_upload(Bucket=bucket, Key="checkpoint")
