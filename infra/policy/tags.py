"""Tags: by them the audit finds what is left, and by them one knows whose it is and how long it may stay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from infra.clouds.naming import MAX_HOURS_TAG, TAGS
from infra.policy.machines import INSTANCE
from infra.policy.rule import Props, Resource, Rule, block
from infra.policy.unknown import Unknown

AWS_WITHOUT = frozenset(
    f"aws:{name}"
    for name in (
        "cloudwatch/logResourcePolicy:LogResourcePolicy",
        "cloudwatch/logStream:LogStream",
        "ebs/encryptionByDefault:EncryptionByDefault",
        "ec2/eipAssociation:EipAssociation",
        "ec2/internetGatewayAttachment:InternetGatewayAttachment",
        "ec2/mainRouteTableAssociation:MainRouteTableAssociation",
        "ec2/networkInterfaceAttachment:NetworkInterfaceAttachment",
        "ec2/route:Route",
        "ec2/routeTableAssociation:RouteTableAssociation",
        "ec2/securityGroupRule:SecurityGroupRule",
        "ec2/tag:Tag",
        "ec2/volumeAttachment:VolumeAttachment",
        "ec2/vpcEndpointPolicy:VpcEndpointPolicy",
        "ec2/vpcEndpointRouteTableAssociation:VpcEndpointRouteTableAssociation",
        "ec2/vpcEndpointSubnetAssociation:VpcEndpointSubnetAssociation",
        "ec2transitgateway/instanceState:InstanceState",
        "iam/rolePolicy:RolePolicy",
        "iam/rolePolicyAttachment:RolePolicyAttachment",
        "s3/bucketAcl:BucketAcl",
        "s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "s3/bucketLogging:BucketLogging",
        "s3/bucketOwnershipControls:BucketOwnershipControls",
        "s3/bucketPolicy:BucketPolicy",
        "s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "s3/bucketVersioning:BucketVersioning",
    )
)
AZURE_WITHOUT = frozenset(
    f"azure-native:{name}"
    for name in (
        "authorization:RoleAssignment",
        "authorization:RoleDefinition",
        "consumption:Budget",
        "costmanagement:Budget",
        "network:SecurityRule",
        "network:Subnet",
        "storage:BlobContainer",
        "storage:BlobServiceProperties",
        "storage:ManagementPolicy",
    )
)
"""Types that take no tags. A type that is not here has to have them: a new one cannot go without by oversight."""


def _required(tags: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((key, tags.get(key)) for key in TAGS)


def _of_resource(resource: Resource) -> Iterator[tuple[str, Any]]:
    if resource.type.startswith("aws:") and resource.type not in AWS_WITHOUT:
        yield from _required(_effective(resource))
    if resource.type.startswith("azure-native:") and resource.type not in AZURE_WITHOUT:
        yield from _required(block(resource.props, "tags"))


def _effective(resource: Resource) -> Mapping[str, Any]:
    """What an AWS resource will be tagged with.

    Under the engine the provider has put it into tagsAll (pulumi-aws, provider/tags.go), or has left that unknown
    because some tag or some setting of the provider is. There, and without an engine: the provider's default tags and
    the resource's own over them.
    """
    merged = resource.props.get("tagsAll")
    if merged is not None and not isinstance(merged, Unknown):
        return dict(merged)
    return {**default_tags(resource.provider), **block(resource.props, "tags")}


def default_tags(provider: Props) -> Mapping[str, Any]:
    """The provider's defaultTags: an explicit provider's inputs are JSON in text."""
    given = block(provider, "defaultTags")
    given = json.loads(given) if isinstance(given, str) else given
    return dict(block(given, "tags"))


def _of_volumes(resource: Resource) -> Iterator[tuple[str, Any]]:
    """The tags of an instance's volumes: its volumeTags, or its root volume's own over the default tags.

    Default tags reach a root volume that is declared, and nothing that a launch template makes.
    """
    given, root = resource.props.get("volumeTags"), resource.props.get("rootBlockDevice")
    if given is None and root is not None:
        given = {**default_tags(resource.provider), **block(root, "tags")}
    yield from _required({} if given is None else given)


def _tagged(part: tuple[str, Any]) -> str | None:
    key, value = part
    if value is None:
        return f"must have the tag {key}"
    text = str(value)
    if not text.strip():
        return f"the tag {key} must say something"
    if key == MAX_HOURS_TAG and not text.isdecimal():
        return f"the tag {key} must be whole hours, not {text!r}"
    return None


def _tagged_volume(part: tuple[str, Any]) -> str | None:
    what = _tagged(part)
    return f"volumeTags: {what}" if what else None


RULES = (
    Rule(
        name="tagged",
        description="All that takes tags says which stack it is of, whose it is and when it ends.",
        numbers=("AWS Config required-tags", "Azure Policy 871b6d14-10aa-478d-b590-94f262ecfa99"),
        parts={"*": _of_resource},
        problem=_tagged,
    ),
    Rule(
        name="volumes-tagged",
        description="A node's volumes say so too, as an instance's tags are not its volumes'.",
        numbers=("AWS Config required-tags",),
        parts={INSTANCE: _of_volumes},
        problem=_tagged_volume,
    ),
)
