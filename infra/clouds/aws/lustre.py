"""FSx for Lustre: the folder that all nodes share, linked to the stack's bucket.

What is written there is copied to the bucket under `fsx/`, and what is put there appears in the folder: the data
outlive the file system. PERSISTENT_2 has SSDs in one zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pulumi
import pulumi_aws as aws

from infra.clouds.aws.names import after, named, titled
from infra.clouds.aws.network import Network
from infra.config.settings import Settings

GB = 1200
"""The smallest PERSISTENT_2 file system."""
MB_S_PER_TIB = 125
"""Its throughput: MB/s for each TiB, the least that there is."""
SKU = "fsx-lustre-persistent2-125-gb-month"
PREFIX = "fsx"
"""Folder of the bucket that the file system is linked to; other folders hold token sets and copies of runs."""
PORTS = ((988, 988), (1018, 1023))
"""Of Lustre: https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html"""
TIMEOUTS = pulumi.CustomTimeouts(create="60m", delete="60m")
EVENTS = ["NEW", "CHANGED", "DELETED"]


@dataclass(frozen=True)
class Lustre:
    """The file system, and what must exist before a machine mounts it."""

    system: aws.fsx.LustreFileSystem
    first: list[pulumi.Resource]
    rules: list[pulumi.Resource]
    """Of `first`, what lets the machines reach it."""


def declare(
    settings: Settings,
    network: Network,
    nodes: aws.ec2.SecurityGroup,
    bucket: aws.s3.Bucket,
    opts: pulumi.ResourceOptions,
) -> Lustre:
    """`nodes`: the security group of the machines that mount it."""
    assert network.private is not None  # a cluster with a queue has a private subnet
    group = aws.ec2.SecurityGroup(
        "lustre-group",
        name=named(settings, "lustre"),
        description=f"Shared file system of the Trainyard stack {settings.stack}",
        vpc_id=network.vpc.id,
        tags=titled(settings, "lustre"),
        opts=opts,
    )
    rules = _rules(settings, group, nodes, opts)
    system = aws.fsx.LustreFileSystem(
        "lustre",
        subnet_ids=network.private.id,
        deployment_type="PERSISTENT_2",
        storage_type="SSD",
        storage_capacity=GB,
        per_unit_storage_throughput=MB_S_PER_TIB,
        file_system_type_version="2.15",
        data_compression_type="LZ4",
        metadata_configuration=aws.fsx.LustreFileSystemMetadataConfigurationArgs(mode="AUTOMATIC"),
        security_group_ids=[group.id],
        automatic_backup_retention_days=0,  # the bucket is the copy
        tags=titled(settings, "lustre"),
        opts=pulumi.ResourceOptions.merge(
            after(opts, *rules),
            pulumi.ResourceOptions(custom_timeouts=TIMEOUTS),
        ),
    )
    link = _link(settings, system, bucket, opts)
    return Lustre(system, [*rules, link], rules)


def _link(
    settings: Settings, system: aws.fsx.LustreFileSystem, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions
) -> pulumi.Resource:
    """The link to the bucket, both ways."""
    policy = aws.fsx.DataRepositoryAssociationS3Args(
        auto_export_policy=aws.fsx.DataRepositoryAssociationS3AutoExportPolicyArgs(events=EVENTS),
        auto_import_policy=aws.fsx.DataRepositoryAssociationS3AutoImportPolicyArgs(events=EVENTS),
    )
    return aws.fsx.DataRepositoryAssociation(
        "lustre-bucket",
        file_system_id=system.id,
        file_system_path="/",
        data_repository_path=pulumi.Output.concat("s3://", bucket.bucket, f"/{PREFIX}/"),
        batch_import_meta_data_on_create=True,  # a kept bucket's files are there again
        s3=policy,
        tags=titled(settings, "lustre-bucket"),
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(custom_timeouts=TIMEOUTS)),
    )


def _rules(
    settings: Settings, group: aws.ec2.SecurityGroup, nodes: aws.ec2.SecurityGroup, opts: pulumi.ResourceOptions
) -> list[pulumi.Resource]:
    """Lustre's ports among the file system's servers, and to and from the nodes: either side may connect."""
    found: list[pulumi.Resource] = []
    peers = {"nodes": nodes, "itself": group}
    for (name, peer), (first, last) in product(peers.items(), PORTS):
        for way, rule in (("from", aws.vpc.SecurityGroupIngressRule), ("to", aws.vpc.SecurityGroupEgressRule)):
            found.append(
                rule(
                    f"lustre-{way}-{name}-{first}",
                    description=f"Lustre {way} {name}",
                    security_group_id=group.id,
                    referenced_security_group_id=peer.id,
                    ip_protocol="tcp",
                    from_port=first,
                    to_port=last,
                    tags=titled(settings, f"lustre-{way}-{name}"),
                    opts=opts,
                )
            )
    for first, last in PORTS:
        found.append(
            aws.vpc.SecurityGroupIngressRule(
                f"nodes-from-lustre-{first}",
                description="Lustre from the file system",
                security_group_id=nodes.id,
                referenced_security_group_id=group.id,
                ip_protocol="tcp",
                from_port=first,
                to_port=last,
                tags=titled(settings, "nodes-from-lustre"),
                opts=opts,
            )
        )
    return found
