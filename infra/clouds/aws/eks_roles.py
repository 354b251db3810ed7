"""Who may do what around an EKS cluster: the control plane, the nodes, and pods by their service account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import access, eks
from infra.clouds.aws.names import arn, asking, named, partition, policy
from infra.config.settings import Settings

KEY = ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants")
"""What the control plane does with the key of the secrets."""


@dataclass(frozen=True)
class Role:
    """A role, and what must exist before it is used, and be removed after."""

    arn: pulumi.Output[str]
    first: list[pulumi.Resource]


def account(provider: aws.Provider) -> str:
    """Number of the account that `up` runs in."""
    return aws.get_caller_identity(opts=asking(provider)).account_id


def principal(provider: aws.Provider) -> str:
    """ARN of the user, or of the role behind the session, that runs `up`: the form that EKS's access entries take."""
    me = aws.get_caller_identity(opts=asking(provider)).arn
    return aws.iam.get_session_context(arn=me, opts=asking(provider)).issuer_arn


def control_plane(settings: Settings, key: aws.kms.Key, provider: aws.Provider) -> Role:
    """Of EKS itself, for this cluster only."""
    own = account(provider)
    condition = {
        "StringEquals": {"aws:SourceAccount": own},
        "ArnLike": {"aws:SourceArn": arn(settings, "eks", own, f"cluster/{eks.cluster_name(settings)}")},
    }
    trust = {"Principal": {"Service": "eks.amazonaws.com"}, "Action": "sts:AssumeRole", "Condition": condition}
    rights = {"key": policy({"Action": KEY, "Resource": key.arn})}
    return _role(settings, "cluster", trust, ["AmazonEKSClusterPolicy"], rights, provider)


def nodes(settings: Settings, provider: aws.Provider) -> Role:
    """Of all nodes: to join, to pull images, and Systems Manager's agent in place of SSH. What pods may do is the
    pods' own."""
    trust = {"Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    rights = {"ssm": policy({"Action": access.AGENT, "Resource": "*"})}  # AWS cannot restrict these to a resource
    managed = ["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"]
    return _role(settings, "node", trust, managed, rights, provider)


def network_plugin(settings: Settings, provider: aws.Provider) -> Role:
    """Of the VPC CNI, which gives pods addresses of the network."""
    return _role(settings, "cni", _of_pods(settings, provider), ["AmazonEKS_CNI_Policy"], {}, provider)


def file_system(settings: Settings, system: aws.fsx.LustreFileSystem, provider: aws.Provider) -> Role:
    """Of the file system's driver: it mounts the one that there is, and can make none that nobody would remove."""
    rights = {"describe": policy({"Action": "fsx:DescribeFileSystems", "Resource": system.arn})}
    return _role(settings, "fsx", _of_pods(settings, provider), [], rights, provider)


def trainer(settings: Settings, bucket: aws.s3.Bucket, provider: aws.Provider) -> Role:
    """Of the jobs' pods: the stack's bucket, and nothing else."""
    rights = {
        "data": policy(
            {"Action": access.BUCKET, "Resource": bucket.arn},
            {"Action": access.OBJECTS, "Resource": pulumi.Output.concat(bucket.arn, "/*")},
        )
    }
    return _role(settings, "trainer", _of_pods(settings, provider), [], rights, provider)


def _of_pods(settings: Settings, provider: aws.Provider) -> dict[str, Any]:
    """Trust in EKS Pod Identity, for pods of this cluster only."""
    own = account(provider)
    cluster = arn(settings, "eks", own, f"cluster/{eks.cluster_name(settings)}")
    condition = {"StringEquals": {"aws:SourceAccount": own}, "ArnEquals": {"aws:SourceArn": cluster}}
    who = {"Service": "pods.eks.amazonaws.com"}
    return {"Principal": who, "Action": ["sts:AssumeRole", "sts:TagSession"], "Condition": condition}


def _role(
    settings: Settings,
    what: str,
    trust: dict[str, Any],
    managed: Sequence[str],
    rights: dict[str, pulumi.Output[str]],
    provider: aws.Provider,
) -> Role:
    """`managed`: names of AWS's own policies. `rights`: our own, by their names."""
    opts = pulumi.ResourceOptions(provider=provider)
    made = aws.iam.Role(
        f"{what}-role",
        name=named(settings, what),
        description=f"{what} of the Trainyard stack {settings.stack}",
        assume_role_policy=policy(trust),
        opts=opts,
    )
    first: list[pulumi.Resource] = [
        aws.iam.RolePolicyAttachment(
            f"{what}-{name}",
            role=made.name,
            policy_arn=f"arn:{partition(settings)}:iam::aws:policy/{name}",
            opts=opts,
        )
        for name in managed
    ]
    first += [
        aws.iam.RolePolicy(f"{what}-may-{name}", name=named(settings, name), role=made.name, policy=text, opts=opts)
        for name, text in rights.items()
    ]
    return Role(made.arn, first)
