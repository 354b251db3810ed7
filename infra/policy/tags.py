"""Rules about tags: the audit finds a stack's resources by them; they name the owner and how long a stack may exist."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from infra.clouds.naming import MAX_HOURS_TAG, TAGS
from infra.policy.resource_types import INSTANCE
from infra.policy.rule import DeclaredResource, PolicyRule, Props
from infra.policy.unknown import Unknown

_AWS_WITHOUT = """
    cloudwatch/logResourcePolicy cloudwatch/logStream ebs/encryptionByDefault ec2/eipAssociation
    ec2/internetGatewayAttachment ec2/mainRouteTableAssociation ec2/networkInterfaceAttachment ec2/route
    ecr/lifecyclePolicy eks/accessPolicyAssociation kms/alias
    ec2/routeTableAssociation ec2/securityGroupRule ec2/tag ec2/volumeAttachment ec2/vpcEndpointPolicy
    ec2/vpcEndpointRouteTableAssociation ec2/vpcEndpointSubnetAssociation ec2transitgateway/instanceState
    iam/rolePolicy iam/rolePolicyAttachment s3/bucketAcl s3/bucketLifecycleConfiguration s3/bucketLogging
    s3/bucketOwnershipControls s3/bucketPolicy s3/bucketPublicAccessBlock
    s3/bucketServerSideEncryptionConfiguration s3/bucketVersioning
"""
_AZURE_WITHOUT = """
    authorization:RoleAssignment authorization:RoleDefinition consumption:Budget costmanagement:Budget
    network:SecurityRule network:Subnet storage:BlobContainer storage:BlobServiceProperties
    storage:ManagementPolicy
"""
AWS_WITHOUT = frozenset(
    f"aws:{name}:{name[name.index('/') + 1].upper()}{name[name.index('/') + 2 :]}" for name in _AWS_WITHOUT.split()
)
AZURE_WITHOUT = frozenset(f"azure-native:{name}" for name in _AZURE_WITHOUT.split())
"""Types that cannot have tags. A type in neither list must have them, so that a new type is not forgotten."""


def _required(tags: Any) -> Iterator[tuple[str, Any]]:
    yield from ((key, tags.get(key)) for key in TAGS)


def _of_resource(resource: DeclaredResource) -> Iterable[tuple[str, Any]]:
    own = resource.props.get("tags") or {}
    if resource.type.startswith("aws:") and resource.type not in AWS_WITHOUT:
        # Under the engine, the provider has put its default tags and the resource's own into tagsAll (pulumi-aws,
        # provider/tags.go), or has left that unknown because a tag or a provider setting is unknown.
        merged = resource.props.get("tagsAll")
        decided = merged is not None and not isinstance(merged, Unknown)
        return _required(merged if decided else {**default_tags(resource.provider), **own})
    if resource.type.startswith("azure-native:") and resource.type not in AZURE_WITHOUT:
        return _required(own)
    return ()


def default_tags(provider: Props) -> Mapping[str, Any]:
    """The provider's defaultTags. Inputs of an explicit provider are JSON text."""
    given = provider.get("defaultTags") or {}
    given = json.loads(given) if isinstance(given, str) else given
    return dict(given.get("tags") or {})


def _of_volumes(resource: DeclaredResource) -> Iterator[tuple[str, Any]]:
    """The tags of an instance's volumes: its volumeTags, or else the root volume's own over the default tags.

    Default tags apply to a root volume that is declared, but not to what a launch template makes.
    """
    given, root = resource.props.get("volumeTags"), resource.props.get("rootBlockDevice")
    if given is None and root is not None:
        given = {**default_tags(resource.provider), **(root.get("tags") or {})}
    return _required({} if given is None else given)


def _tagged(part: tuple[str, Any], volumes: str = "") -> str | None:
    key, value = part
    if value is None:
        return f"{volumes}must have the tag {key}"
    text = str(value)
    if not text.strip():
        return f"{volumes}the tag {key} must not be empty"
    if key == MAX_HOURS_TAG and not text.isdecimal():
        return f"{volumes}the tag {key} must be whole hours, not {text!r}"
    return None


RULES = (
    PolicyRule(
        "tagged",
        "Everything that takes tags names its stack, its owner and its longest life "
        "(AWS Config required-tags, Azure Policy 871b6d14-10aa-478d-b590-94f262ecfa99).",
        {"*": _of_resource},
        _tagged,
    ),
    PolicyRule(
        "volumes-tagged",
        "A node's volumes have these tags too: they do not get an instance's (AWS Config required-tags).",
        {INSTANCE: _of_volumes},
        partial(_tagged, volumes="volumeTags: "),
    ),
)
