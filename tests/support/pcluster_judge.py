"""ParallelCluster's own judgement of a configuration. Run by a Python that has aws-parallelcluster, never imported.

    python pcluster_judge.py < ORDER > ANSWER       with AWS_ENDPOINT_URL, where an empty account is

ORDER: {"name", "configuration", "suppress", "synthesise"}; in the configuration, @head_subnet@ and the like stand for
what is made in the account first. "reservation": a capacity reservation there, as EC2 describes it, but for its zone.
ANSWER: {"findings": [[validator, level, message]], "read": the configuration as ParallelCluster has read it,
"templates": {name: template}}.
With {"image_configuration"} instead: the findings about a configuration of `pcluster build-image`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import boto3

REGION = os.environ["AWS_DEFAULT_REGION"]
LUSTRE = ((988, 988), (1018, 1023))


def make(image: str) -> dict[str, str]:
    """What the configuration refers to, as Pulumi makes it; name -> id."""
    ec2, s3 = boto3.client("ec2"), boto3.client("s3")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/24")["Vpc"]["VpcId"]
    for attribute in ("EnableDnsSupport", "EnableDnsHostnames"):
        ec2.modify_vpc_attribute(VpcId=vpc, **{attribute: {"Value": True}})
    zone = ec2.describe_availability_zones()["AvailabilityZones"][0]["ZoneName"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"]["SubnetId"]
        for cidr in ("10.0.0.0/25", "10.0.0.128/26")
    ]
    nodes, lustre = (
        ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
        for name in ("nodes", "lustre")
    )
    everything = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": nodes}]}]
    ec2.authorize_security_group_ingress(GroupId=nodes, IpPermissions=everything)
    ec2.authorize_security_group_egress(GroupId=nodes, IpPermissions=everything)
    for first, last in LUSTRE:
        ports = {"IpProtocol": "tcp", "FromPort": first, "ToPort": last}
        rules = [{**ports, "UserIdGroupPairs": [{"GroupId": group}]} for group in (nodes, lustre)]
        ec2.authorize_security_group_ingress(GroupId=lustre, IpPermissions=rules)
        ec2.authorize_security_group_egress(GroupId=lustre, IpPermissions=rules)
    card = ec2.create_network_interface(SubnetId=subnets[1], Groups=[lustre])["NetworkInterface"]["NetworkInterfaceId"]
    bucket = "trainyard-judged"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket=bucket, Key="bootstrap/0123.sh", Body=b"#!/bin/sh\n")
    ec2.create_key_pair(KeyName="operator")
    allowed = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{bucket}"}
    policy = boto3.client("iam").create_policy(
        PolicyName="nodes",
        Path="/parallelcluster/",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}),
    )["Policy"]["Arn"]
    system = _file_system(vpc, subnets[1], card)
    return {
        **{"head_subnet": subnets[0], "queue_subnet": subnets[1], "group": nodes, "key": "operator"},
        **{"file_system": system, "bucket": bucket, "rights": policy, "image": image},
        "script": f"s3://{bucket}/bootstrap/0123.sh",
    }


def _file_system(vpc: str, subnet: str, card: str) -> str:
    """A file system's id. moto's ids are too short for ParallelCluster, and its file systems have no interfaces: what
    FSx would tell of it is told here."""
    from pcluster.aws.aws_resources import FsxStorageInfo
    from pcluster.aws.fsx import FSxClient

    name = "fs-0123456789abcdef0"
    facts = {"FileSystemId": name, "FileSystemType": "LUSTRE", "StorageCapacity": 1200, "VpcId": vpc}
    facts |= {"SubnetIds": [subnet], "NetworkInterfaceIds": [card], "DNSName": f"{name}.fsx.{REGION}.amazonaws.com"}
    facts["LustreConfiguration"] = {"DeploymentType": "PERSISTENT_2", "MountName": "abcdefgh"}
    FSxClient.get_file_systems_info = lambda _self, _ids: [FsxStorageInfo(facts)]
    return name


def _reserve(reservation: dict[str, Any], subnet: str) -> None:
    """A capacity reservation in the subnet's zone, and its placement group. moto has neither: what EC2 would tell of
    them is told here."""
    from pcluster.aws.aws_resources import CapacityReservationInfo
    from pcluster.aws.ec2 import Ec2Client

    (there,) = boto3.client("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"]
    facts = {**reservation, "AvailabilityZone": there["AvailabilityZone"]}
    known = {facts["CapacityReservationId"]: CapacityReservationInfo(facts)}
    Ec2Client.describe_capacity_reservations = lambda _self, ids: [known[id_] for id_ in ids]
    groups = [facts["PlacementGroupArn"].rpartition("/")[2]] if "PlacementGroupArn" in facts else []
    Ec2Client.describe_placement_group = lambda _self, name: groups[groups.index(name)]


def judged(order: dict[str, Any]) -> dict[str, Any]:
    from pcluster.config.common import TypeMatchValidatorsSuppressor
    from pcluster.models.s3_bucket import S3Bucket
    from pcluster.schemas.cluster_schema import ClusterSchema
    from pcluster.validators.common import ValidatorContext

    made = make(order["image"])
    if "reservation" in order:
        _reserve(order["reservation"], made["queue_subnet"])
    text = json.dumps(order["configuration"])
    for name, value in made.items():
        text = text.replace(f"@{name}@", value)
    schema = ClusterSchema(cluster_name=order["name"])
    config = schema.load(json.loads(text))
    types = {entry.removeprefix("type:") for entry in order["suppress"]}
    suppressors = {TypeMatchValidatorsSuppressor(types)} if types else None
    found = config.validate(suppressors, ValidatorContext())
    answer: dict[str, Any] = {"findings": findings(found)}
    if order["synthesise"]:
        from pcluster.templates.cdk_builder import CDKTemplateBuilder

        bucket = S3Bucket(
            "cluster", order["name"], "parallelcluster/judged", name=made["bucket"], is_custom_bucket=True
        )
        template, _assets = CDKTemplateBuilder().build_cluster_template(config, bucket, order["name"], "judged")
        answer["templates"] = {"cluster": template, **_nested(made["bucket"])}
        answer["made"] = made
    answer["read"] = _read(config, schema, made)
    return answer


def _read(config: Any, schema: Any, made: dict[str, str]) -> Any:
    """The configuration as ParallelCluster has read it, with what was made in the account as the order has it."""
    dumped = schema.dump(config)
    networking = dumped["HeadNode"]["Networking"]
    networking["ElasticIp"] = config.head_node.networking.headnode_elastic_ip  # a text until it is used
    text = json.dumps(dumped, default=str)
    for name, value in made.items():
        text = text.replace(value, f"@{name}@")
    return json.loads(text)


def _nested(bucket: str) -> dict[str, Any]:
    """The templates of the cluster's nested stacks, which the synthesis has put into its bucket."""
    import yaml

    s3 = boto3.client("s3")
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"] if "/assets/" in entry["Key"]]
    return {key: yaml.safe_load(s3.get_object(Bucket=bucket, Key=key)["Body"].read()) for key in keys}


def judged_image(order: dict[str, Any]) -> dict[str, Any]:
    from pcluster.schemas.imagebuilder_schema import ImageBuilderSchema
    from pcluster.validators.common import ValidatorContext

    config = ImageBuilderSchema().load(order["image_configuration"])
    return {"findings": findings(config.validate(None, ValidatorContext()))}


def findings(found: list[Any]) -> list[tuple[str, str, str]]:
    return sorted({(one.validator_type, one.level.name, one.message) for one in found})


def main() -> None:
    order, out = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr  # ParallelCluster and CDK print there
    answer = judged_image(order) if "image_configuration" in order else judged(order)
    json.dump(answer, out, default=str)


main()
