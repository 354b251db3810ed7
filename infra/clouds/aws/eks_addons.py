"""EKS's add-ons in pinned versions, and the rights of those that need any, by Pod Identity."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import eks, eks_roles
from infra.clouds.aws.eks_cluster import ControlPlane
from infra.clouds.aws.names import after, titled
from infra.config.settings import Settings

ACCOUNTS = {"vpc-cni": "aws-node", "aws-fsx-csi-driver": "fsx-csi-controller-sa"}
"""Service accounts, in kube-system, of the add-ons that call AWS."""
FEW_ADDRESSES = {"env": {"WARM_IP_TARGET": "2", "MINIMUM_IP_TARGET": "6"}}
"""The CNI's reserve on each node; by default it takes all the addresses that an interface can have, up to 50."""
TIMEOUTS = pulumi.CustomTimeouts(create="20m", update="20m", delete="20m")


def before_nodes(settings: Settings, plane: ControlPlane, provider: aws.Provider) -> list[pulumi.Resource]:
    """Those that a node needs to become ready."""
    role = eks_roles.network_plugin(settings, provider)
    return [
        _addon(settings, plane, name, provider, [], role if name in ACCOUNTS else None) for name in eks.BEFORE_NODES
    ]


def on_nodes(
    settings: Settings,
    plane: ControlPlane,
    system: aws.fsx.LustreFileSystem,
    nodes: pulumi.Resource,
    provider: aws.Provider,
) -> list[pulumi.Resource]:
    """Those that need a node to run on: `nodes`, the group of the system nodes."""
    role = eks_roles.file_system(settings, system, provider)
    return [
        _addon(settings, plane, name, provider, [nodes], role if name in ACCOUNTS else None)
        for name in eks.ADDONS
        if name not in eks.BEFORE_NODES
    ]


def jobs(
    settings: Settings, plane: ControlPlane, bucket: aws.s3.Bucket, provider: aws.Provider
) -> list[pulumi.Resource]:
    """The rights of the jobs' service account: pods that name it reach the bucket."""
    role = eks_roles.trainer(settings, bucket, provider)
    association = aws.eks.PodIdentityAssociation(
        "trainer-identity",
        cluster_name=plane.cluster.name,
        namespace=eks.NAMESPACE,
        service_account=eks.SERVICE_ACCOUNT,
        role_arn=role.arn,
        tags=titled(settings, "trainer"),
        opts=after(pulumi.ResourceOptions(provider=provider), *role.first),
    )
    return [association]


def _addon(
    settings: Settings,
    plane: ControlPlane,
    name: str,
    provider: aws.Provider,
    first: list[pulumi.Resource],
    role: eks_roles.Role | None,
) -> aws.eks.Addon:
    identity, needed = None, list(first)
    if role is not None:
        needed += role.first
        identity = [aws.eks.AddonPodIdentityAssociationArgs(role_arn=role.arn, service_account=ACCOUNTS[name])]
    values: Mapping[str, object] | None = FEW_ADDRESSES if name == "vpc-cni" else None
    return aws.eks.Addon(
        f"addon-{name}",
        cluster_name=plane.cluster.name,
        addon_name=name,
        addon_version=eks.ADDONS[name],
        configuration_values=None if values is None else json.dumps(values),
        pod_identity_associations=identity,
        # What somebody changed in the cluster by hand gives way to what is declared.
        resolve_conflicts_on_create="OVERWRITE",
        resolve_conflicts_on_update="OVERWRITE",
        tags=titled(settings, name),
        opts=pulumi.ResourceOptions.merge(
            after(pulumi.ResourceOptions(provider=provider), *needed),
            pulumi.ResourceOptions(custom_timeouts=TIMEOUTS),
        ),
    )
