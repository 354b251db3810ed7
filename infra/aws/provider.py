"""The stack's own AWS provider: one region, and the tags that everything carries. And how things are called."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.naming import tags
from infra.settings import Settings

DEFAULT_REGION = "us-east-1"
IMAGE_TAG = "trainyard-image"
"""On an image: the key of what it was baked from, which the node's bootstrap compares with its own."""


def region(settings: Settings) -> str:
    return settings.cloud.region or DEFAULT_REGION


def partition(settings: Settings) -> str:
    """What the ARNs of the region begin with: China and the US government have an AWS of their own."""
    where = region(settings)
    return "aws-cn" if where.startswith("cn-") else "aws-us-gov" if where.startswith("us-gov-") else "aws"


def arn(settings: Settings, service: str, account: str, resource: str) -> str:
    return f"arn:{partition(settings)}:{service}:{region(settings)}:{account}:{resource}"


def named(settings: Settings, what: str = "") -> str:
    """The deterministic name of something of the stack: what a killed `up` made is found again by it."""
    return f"trainyard-{settings.stack}" + (f"-{what}" if what else "")


def titled(settings: Settings, what: str = "") -> dict[str, str]:
    """The tag that AWS shows as a thing's name, where a thing has no name of its own."""
    return {"Name": named(settings, what)}


def declare(settings: Settings) -> aws.Provider:
    """The provider. Credentials are the environment's and the shared files', as everywhere with AWS."""
    default_tags = aws.ProviderDefaultTagsArgs(tags=tags(settings))
    return aws.Provider("aws", region=region(settings), default_tags=default_tags)


def asking(provider: aws.Provider) -> pulumi.InvokeOptions:
    return pulumi.InvokeOptions(provider=provider)
