"""The stack's own AWS provider: one region, and the tags that everything carries. And how things are called."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.clouds.naming import tags, unique
from infra.config.settings import Settings

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
    """The name of something of the stack: the same at each `up`, and no other stack's, as the stack's id is in it.

    At most 42 characters and `what`: the stack's name has 32 at most, and a bucket's or a role's may have 63.
    """
    return f"trainyard-{unique(settings.stack, settings.stack_id)}" + (f"-{what}" if what else "")


def titled(settings: Settings, what: str = "") -> dict[str, str]:
    """The tag that AWS shows as a thing's name, where a thing has no name of its own."""
    return {"Name": named(settings, what)}


def declare(settings: Settings, opts: pulumi.ResourceOptions) -> aws.Provider:
    """The provider. Credentials are the environment's and the shared files', as everywhere with AWS."""
    default_tags = aws.ProviderDefaultTagsArgs(tags=tags(settings))
    return aws.Provider("aws", region=region(settings), default_tags=default_tags, opts=opts)


def asking(provider: aws.Provider) -> pulumi.InvokeOptions:
    return pulumi.InvokeOptions(provider=provider)
