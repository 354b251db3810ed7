"""The cluster that AWS ParallelCluster is asked for, as its own configuration file has it.

A pure function of the settings and of what Pulumi has made. https://docs.aws.amazon.com/parallelcluster/latest/ug/
cluster-configuration-file-v3.html; a test has it judged by ParallelCluster's own schema and validators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from infra.clouds.aws import machine_types
from infra.clouds.aws.names import region
from infra.clouds.naming import tags
from infra.config.settings import Settings
from infra.machine import MachineType

CLUSTER = "aws-slurm"
"""The kind of cluster that is ParallelCluster's."""
VERSION = "3.16.1"
"""ParallelCluster's version: its service template, its images and the validators of the tests."""
OS = "ubuntu2404"
HEAD = MachineType(name="c5n.2xlarge", cores=4, memory_gb=21)
"""The head's type: it schedules, and sends what all nodes ask it for over 25 Gbit/s."""
HEAD_DISK_GB = 100
QUEUE, RESOURCE = "queue1", "node"
NODE_PREFIX = f"{QUEUE}-dy-{RESOURCE}"
"""ParallelCluster calls node N of them `queue1-dy-node-N`: the queue, `dy` for dynamic, the compute resource, N."""
SHARED_DIR = "/fsx"
LOG_DAYS = 30
OLD_DRIVER = ("sm_70",)
"""Architectures (Volta) for which NVIDIA's open kernel module has no support: ParallelCluster's own images have it."""
KNOWN_SAFE = "type:InstanceTypeBaseAMICompatibleValidator"
"""The validator that refuses p3dn for the driver of ParallelCluster's own images, also on an image with another one."""


@dataclass(frozen=True)
class Parts:
    """What the configuration refers to: ids and names of what Pulumi makes, or CloudFormation's references."""

    head_subnet: str
    queue_subnet: str
    group: str
    """Id of the security group of all nodes."""
    key: str
    """Name of the operator's key pair."""
    file_system: str
    bucket: str
    rights: str
    """ARN of the policy that every node's role gets."""
    script: Any
    """S3 URL of the script that makes a machine a Trainyard node."""
    image: Any = None
    """Id of the image that all machines boot; None: ParallelCluster's own for OS."""
    reservation: str = ""
    """Id of the user's capacity reservation; empty: none."""
    group_name: str = ""
    """Name of the placement group that the reservation was made in; empty: it has none."""


def configuration(settings: Settings, parts: Parts) -> dict[str, Any]:
    """ParallelCluster's cluster configuration."""
    image = {"Os": OS} if parts.image is None else {"Os": OS, "CustomAmi": parts.image}
    lustre = {"FileSystemId": parts.file_system}
    return {
        "Region": region(settings),
        "Image": image,
        "Imds": {"ImdsSupport": "v2.0"},
        # Its own default is a bucket for the whole account that nobody removes.
        "CustomS3Bucket": parts.bucket,
        "HeadNode": _head(parts),
        "Scheduling": {
            "Scheduler": "slurm",
            "SlurmSettings": {
                # Minutes; -1: never.
                "ScaledownIdletime": settings.idle_minutes or -1,
                # A changed queue waits for its jobs, and ends none.
                "QueueUpdateStrategy": "DRAIN",
                # A job that is larger than the queue is refused at once; by default it waits for ever.
                "CustomSlurmSettings": [{"EnforcePartLimits": "ALL"}],
            },
            "SlurmQueues": [_queue(settings, parts)],
        },
        # The file system belongs to Pulumi, so it outlives the cluster.
        "SharedStorage": [
            {"Name": "fsx", "StorageType": "FsxLustre", "MountDir": SHARED_DIR, "FsxLustreSettings": lustre}
        ],
        "Monitoring": {
            "DetailedMonitoring": settings.cloud.monitoring,
            "Logs": {"CloudWatch": {"Enabled": True, "RetentionInDays": LOG_DAYS, "DeletionPolicy": "Delete"}},
            "Dashboards": {"CloudWatch": {"Enabled": False}},
            "Alarms": {"Enabled": False},  # they cost, and tell nobody
        },
        "Tags": [{"Key": key, "Value": value} for key, value in tags(settings).items()],
    }


def of_queue(settings: Settings) -> Settings:
    """The settings with the number of machines of the nodes' type: with ParallelCluster the head is of another one."""
    return replace(settings, nodes=settings.nodes - 1) if settings.cluster == CLUSTER else settings


def suppressed(settings: Settings) -> list[str]:
    """The validators that ParallelCluster must not run for these settings."""
    return [KNOWN_SAFE] if needs_own_image(machine_types.of(settings)) else []


def needs_own_image(machine: MachineType) -> bool:
    """Whether ParallelCluster's own images have no driver for the type's GPUs."""
    return machine.gpu_architecture in OLD_DRIVER


def _head(parts: Parts) -> dict[str, Any]:
    return {
        "InstanceType": HEAD.name,
        "Networking": {"SubnetId": parts.head_subnet, "ElasticIp": True, "SecurityGroups": [parts.group]},
        "Ssh": {"KeyName": parts.key},
        "LocalStorage": _disk(HEAD_DISK_GB),
        # By default only root and the cluster's own users get credentials from the metadata service. The operator's
        # user, which has sudo in any case, reads and writes the bucket.
        "Imds": {"Secured": False},
        "Iam": _rights(parts),
        "CustomActions": _action(parts, "head"),
    }


def _queue(settings: Settings, parts: Parts) -> dict[str, Any]:
    placement: dict[str, Any] = {"Enabled": True}
    if parts.reservation:
        # Capacity outside of a placement group cannot be used inside one.
        placement = {"Name": parts.group_name} if parts.group_name else {"Enabled": False}
    return {
        "Name": QUEUE,
        "CapacityType": "SPOT" if settings.cloud.spot else "ONDEMAND",
        "ComputeResources": [_resource(settings, parts)],
        "ComputeSettings": {"LocalStorage": _disk(settings.cloud.disk_gb)},
        "CustomActions": _action(parts, "worker"),
        "Iam": _rights(parts),
        "Networking": {
            "SubnetIds": [parts.queue_subnet],
            # EFA's second interface allows no public address: the subnet is behind the NAT gateway.
            "AssignPublicIp": False,
            "SecurityGroups": [parts.group],
            "PlacementGroup": placement,
        },
    }


def _resource(settings: Settings, parts: Parts) -> dict[str, Any]:
    machine = machine_types.of(settings)
    found: dict[str, Any] = {
        "Name": RESOURCE,
        "InstanceType": machine.name,
        "MinCount": 0,
        "MaxCount": settings.nodes - 1,
        "DisableSimultaneousMultithreading": True,
        "Efa": {"Enabled": bool(machine.efa_cards)},
    }
    if parts.reservation:
        found["CapacityReservationTarget"] = {"CapacityReservationId": parts.reservation}
    return found


def _disk(gb: int) -> dict[str, Any]:
    return {"RootVolume": {"VolumeType": "gp3", "Size": gb, "Encrypted": True}}


def _rights(parts: Parts) -> dict[str, Any]:
    """Instead of S3Access, which grants s3:Get* and s3:List*: our policy names what a node may do."""
    return {"AdditionalIamPolicies": [{"Policy": parts.rights}]}


def _action(parts: Parts, role: str) -> dict[str, Any]:
    return {"OnNodeConfigured": {"Script": parts.script, "Args": [role]}}
