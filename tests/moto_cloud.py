"""A whole AWS on loopback: moto's server, and a stack's worth of things made in it as Pulumi's provider would."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aws_forms
import boto3
import pytest
from moto.server import ThreadedMotoServer

from infra.aws import api

REGION = "us-east-1"
ZONE = "us-east-1b"


@contextmanager
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of an empty account; boto3 of this process and of its children talks to nothing else."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        given = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        for name, value in {**given, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        boto3.setup_default_session()  # an earlier one remembers its credentials
        aws_forms.watch(boto3.DEFAULT_SESSION)
        api.client.cache_clear()
        # One server process has one memory: what an earlier test made is still in it.
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")).close()
        yield endpoint
    finally:
        server.stop()


def tagged(kind: str, stack: str, name: str = "") -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tags(stack, name)}]


def tags(stack: str, name: str = "") -> list[dict[str, str]]:
    named = [{"Key": "Name", "Value": name}] if name else []
    return [{"Key": "trainyard-stack", "Value": stack}, {"Key": "trainyard-owner", "Value": "ada"}, *named]


def make_stack(stack: str) -> dict[str, str]:
    """Everything that `up` makes on AWS and moto knows; name -> id as Pulumi's state has it."""
    ec2, made = boto3.client("ec2"), {}
    made["vpc"] = vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tagged("vpc", stack))["Vpc"]["VpcId"]
    made["subnet"] = subnet = ec2.create_subnet(
        VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone=ZONE, TagSpecifications=tagged("subnet", stack)
    )["Subnet"]["SubnetId"]
    made["gateway"] = gateway = ec2.create_internet_gateway(TagSpecifications=tagged("internet-gateway", stack))[
        "InternetGateway"
    ]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    made["table"] = table = ec2.create_route_table(VpcId=vpc, TagSpecifications=tagged("route-table", stack))[
        "RouteTable"
    ]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    made["endpoint"] = ec2.create_vpc_endpoint(
        VpcId=vpc,
        VpcEndpointType="Gateway",
        ServiceName=f"com.amazonaws.{REGION}.s3",
        RouteTableIds=[table],
        TagSpecifications=tagged("vpc-endpoint", stack),
    )["VpcEndpoint"]["VpcEndpointId"]
    _groups(ec2, made, stack)
    _gateways(ec2, made, stack)
    _machines(ec2, made, stack)
    _access(made, stack)
    _bucket(made, stack)
    return made


def _groups(ec2: Any, made: dict[str, str], stack: str) -> None:
    """Two security groups that name each other, which neither of them survives alone; and the network's own, closed
    and tagged by `up`, which is no id to remove: it goes with the network."""
    wanted = [{"Name": "vpc-id", "Values": [made["vpc"]]}, {"Name": "group-name", "Values": ["default"]}]
    (default,) = ec2.describe_security_groups(Filters=wanted)["SecurityGroups"]
    ec2.create_tags(Resources=[default["GroupId"]], Tags=tags(stack))
    for name in ("group", "other-group"):
        made[name] = ec2.create_security_group(
            GroupName=f"trainyard-{stack}-{name}",
            Description="nodes",
            VpcId=made["vpc"],
            TagSpecifications=tagged("security-group", stack),
        )["GroupId"]
    for one, other in (("group", "other-group"), ("other-group", "group")):
        pairs = [{"GroupId": made[other]}]
        ec2.authorize_security_group_ingress(
            GroupId=made[one], IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": pairs}]
        )


def _gateways(ec2: Any, made: dict[str, str], stack: str) -> None:
    for name in ("address", "nat-address"):
        made[name] = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", stack))["AllocationId"]
    made["nat"] = ec2.create_nat_gateway(
        SubnetId=made["subnet"], AllocationId=made["nat-address"], TagSpecifications=tagged("natgateway", stack)
    )["NatGateway"]["NatGatewayId"]


def _machines(ec2: Any, made: dict[str, str], stack: str) -> None:
    made["key"] = f"trainyard-{stack}-key"
    ec2.create_key_pair(KeyName=made["key"], TagSpecifications=tagged("key-pair", stack))
    base = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    for name in ("builder", "node1", "node2"):
        made[name] = ec2.run_instances(
            ImageId=base,
            InstanceType="m7i.8xlarge",
            MinCount=1,
            MaxCount=1,
            SubnetId=made["subnet"],
            SecurityGroupIds=[made["group"]],
            TagSpecifications=tagged("instance", stack, name) + tagged("volume", stack, name),
        )["Instances"][0]["InstanceId"]
    ec2.associate_address(AllocationId=made["address"], InstanceId=made["node1"])
    made["image"] = ec2.create_image(
        InstanceId=made["builder"], Name=f"trainyard-{stack}-0123", TagSpecifications=tagged("image", stack)
    )["ImageId"]
    ec2.stop_instances(InstanceIds=[made["builder"]])
    made["template"] = ec2.create_launch_template(
        LaunchTemplateName=f"trainyard-{stack}-node",
        LaunchTemplateData={"InstanceType": "m7i.8xlarge", "ImageId": made["image"]},
        TagSpecifications=tagged("launch-template", stack),
    )["LaunchTemplate"]["LaunchTemplateId"]
    made["disk"] = ec2.create_volume(
        AvailabilityZone=ZONE, Size=100, VolumeType="gp3", TagSpecifications=tagged("volume", stack)
    )["VolumeId"]
    made["copy"] = ec2.create_snapshot(VolumeId=made["disk"], TagSpecifications=tagged("snapshot", stack))["SnapshotId"]


def _access(made: dict[str, str], stack: str) -> None:
    iam, role = boto3.client("iam"), f"trainyard-{stack}-node"
    trust = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole"}]}'
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust, Tags=tags(stack))
    allowed = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::trainyard-{stack}-123456789012"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_role_policy(RoleName=role, PolicyName="bucket", PolicyDocument=policy)
    iam.create_instance_profile(InstanceProfileName=role, Tags=tags(stack))
    iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
    made["role"] = role
    boto3.client("logs").create_log_group(logGroupName=f"trainyard-{stack}-flow", tags={"trainyard-stack": stack})
    made["log"] = f"trainyard-{stack}-flow"


def _bucket(made: dict[str, str], stack: str) -> None:
    s3, bucket = boto3.client("s3"), f"trainyard-{stack}-123456789012"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags(stack)})
    made["bucket"] = bucket


def fill(bucket: str) -> None:
    """Two versions of one object, a deleted one, and an upload that never ended."""
    s3 = boto3.client("s3")
    for text in (b"first", b"second"):
        s3.put_object(Bucket=bucket, Key="data/train.bin", Body=text)
    s3.put_object(Bucket=bucket, Key="gone", Body=b"x")
    s3.delete_object(Bucket=bucket, Key="gone")
    s3.create_multipart_upload(Bucket=bucket, Key="checkpoint")
