"""The stack's AWS provider (one region, tags on everything), and how resources are named."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws

from infra.clouds.naming import tags, unique
from infra.config.settings import Settings

DEFAULT_REGION = "us-east-1"
IMAGE_TAG = "trainyard-image"
"""Tag of an image: the key of what it was baked from. The node's bootstrap compares it with its own."""


def region(settings: Settings) -> str:
    """The region of the stack; DEFAULT_REGION if its configuration names none."""
    return settings.cloud.region or DEFAULT_REGION


def partition(settings: Settings) -> str:
    """The partition in the region's ARNs; China and the US government have their own."""
    where = region(settings)
    return "aws-cn" if where.startswith("cn-") else "aws-us-gov" if where.startswith("us-gov-") else "aws"


def arn(settings: Settings, service: str, account: str, resource: str) -> str:
    """An ARN in the stack's region; `account` is a number, `resource` what comes last, such as cluster/NAME."""
    return f"arn:{partition(settings)}:{service}:{region(settings)}:{account}:{resource}"


def named(settings: Settings, what: str = "") -> str:
    """The same on each `up`, unique to the stack by its id: 42 characters plus `what`; buckets and roles allow 63."""
    return f"trainyard-{unique(settings.stack, settings.stack_id)}" + (f"-{what}" if what else "")


def titled(settings: Settings, what: str = "") -> dict[str, str]:
    """The Name tag, for resources that have no name of their own."""
    return {"Name": named(settings, what)}


def declare(settings: Settings, opts: pulumi.ResourceOptions) -> aws.Provider:
    """The provider. Credentials come from the environment and AWS's shared files."""
    default_tags = aws.ProviderDefaultTagsArgs(tags=tags(settings))
    return aws.Provider("aws", region=region(settings), default_tags=default_tags, opts=opts)


def after(opts: pulumi.ResourceOptions, *needed: pulumi.Resource) -> pulumi.ResourceOptions:
    """`opts` for a resource that needs others to exist, though its arguments do not name them."""
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=needed))


def policy(*statements: dict[str, Any]) -> pulumi.Output[str]:
    """A policy of IAM; a statement allows, unless it says otherwise."""
    allowing = [{"Effect": "Allow", **statement} for statement in statements]
    return pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": allowing})


def asking(provider: aws.Provider) -> pulumi.InvokeOptions:
    """Options for a data source: use the stack's provider, and so its region."""
    return pulumi.InvokeOptions(provider=provider)
