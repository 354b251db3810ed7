"""The control plane: EKS's cluster, the key of its secrets, its logs, and who may use its API."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import eks, eks_roles
from infra.clouds.aws.names import after, named, partition, titled
from infra.clouds.aws.network import Network
from infra.config.settings import Settings

LOGS = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
TIMEOUTS = pulumi.CustomTimeouts(create="45m", update="60m", delete="30m")


@dataclass(frozen=True)
class ControlPlane:
    """The cluster as its nodes and its users refer to it."""

    cluster: aws.eks.Cluster
    group: pulumi.Output[str]
    """Id of the security group that EKS makes: what is in it reaches the control plane, and is reached by it."""
    usable: list[pulumi.Resource]
    """What must exist before the API lets the operator in."""

    @property
    def endpoint(self) -> pulumi.Output[str]:
        """URL of the API server."""
        return self.cluster.endpoint

    @property
    def authority(self) -> pulumi.Output[str]:
        """The API server's certificate authority, PEM as base64."""
        return self.cluster.certificate_authority.apply(lambda found: str(found.data))


def declare(settings: Settings, place: Network, first: list[pulumi.Resource], provider: aws.Provider) -> ControlPlane:
    """`first`: what is made before the cluster, and removed after it."""
    assert place.private is not None and place.second is not None
    opts, name = pulumi.ResourceOptions(provider=provider), eks.cluster_name(settings)
    key = _key(settings, opts)
    role = eks_roles.control_plane(settings, key, provider)
    # Made before EKS would make it, which gives it neither tags nor an end.
    logs = aws.cloudwatch.LogGroup("cluster-logs", name=eks.log_group(name), retention_in_days=eks.LOG_DAYS, opts=opts)
    cluster = aws.eks.Cluster(
        "cluster",
        name=name,
        version=eks.VERSION,
        role_arn=role.arn,
        vpc_config=aws.eks.ClusterVpcConfigArgs(
            subnet_ids=[place.private.id, place.second.id],
            endpoint_private_access=True,
            endpoint_public_access=True,
            public_access_cidrs=[str(settings.cloud.admin_cidr)],  # by default everybody's
        ),
        # Who may do what is in access entries; the operator's is below, and so in the state.
        access_config=aws.eks.ClusterAccessConfigArgs(
            authentication_mode="API", bootstrap_cluster_creator_admin_permissions=False
        ),
        encryption_config=aws.eks.ClusterEncryptionConfigArgs(
            provider=aws.eks.ClusterEncryptionConfigProviderArgs(key_arn=key.arn), resources=["secrets"]
        ),
        enabled_cluster_log_types=LOGS,
        # At the end of its support EKS upgrades the cluster, instead of asking six times the price.
        upgrade_policy=aws.eks.ClusterUpgradePolicyArgs(support_type="STANDARD"),
        bootstrap_self_managed_addons=False,
        tags=titled(settings),
        opts=pulumi.ResourceOptions.merge(
            after(opts, logs, *role.first, *first), pulumi.ResourceOptions(custom_timeouts=TIMEOUTS)
        ),
    )
    group = cluster.vpc_config.apply(lambda found: str(found.cluster_security_group_id))
    return ControlPlane(cluster, group, _access(settings, cluster, provider))


def _key(settings: Settings, opts: pulumi.ResourceOptions) -> aws.kms.Key:
    key = aws.kms.Key(
        "cluster-key",
        description=f"Secrets of the Kubernetes API of the Trainyard stack {settings.stack}",
        enable_key_rotation=True,
        deletion_window_in_days=eks.KEY_DAYS,
        tags=titled(settings),
        opts=opts,
    )
    aws.kms.Alias("cluster-key-name", name=f"alias/{named(settings)}", target_key_id=key.key_id, opts=opts)
    return key


def _access(settings: Settings, cluster: aws.eks.Cluster, provider: aws.Provider) -> list[pulumi.Resource]:
    """Who runs `up` administers the cluster. Another operator's `up` puts theirs in its place."""
    opts = pulumi.ResourceOptions(provider=provider, delete_before_replace=True)
    who = eks_roles.principal(provider)
    entry = aws.eks.AccessEntry(
        "operator", cluster_name=cluster.name, principal_arn=who, type="STANDARD", tags=titled(settings), opts=opts
    )
    rights = aws.eks.AccessPolicyAssociation(
        "operator-rights",
        cluster_name=cluster.name,
        principal_arn=who,
        policy_arn=f"arn:{partition(settings)}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
        access_scope=aws.eks.AccessPolicyAssociationAccessScopeArgs(type="cluster"),
        opts=after(opts, entry),
    )
    return [entry, rights]
