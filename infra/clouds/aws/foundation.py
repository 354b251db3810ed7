"""What exists before the first machine: network, security groups, rights, bucket. Builder and nodes go into it."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import access, data, network, security
from infra.config.settings import Settings


@dataclass(frozen=True)
class Ground:
    """Everything that a machine of the stack refers to."""

    provider: aws.Provider
    network: network.Network
    security: security.Security
    access: access.Access
    bucket: aws.s3.Bucket

    @property
    def first(self) -> list[pulumi.Resource]:
        """What must exist before a machine boots, though its arguments do not name it: routes, rules and rights."""
        return [*self.network.ways_out, *self.security.rules, *self.access.rights]


def declare(settings: Settings, provider: aws.Provider, *, builder: bool) -> Ground:
    """`builder`: an image is going to be baked here."""
    opts = pulumi.ResourceOptions(provider=provider)
    place = network.declare(settings, builder=builder, opts=opts)
    if settings.cloud.flow_logs:
        network.log(settings, place, provider, opts)
    groups = security.declare(settings, place, builder=builder, opts=opts)
    bucket = data.declare(settings, provider, opts)
    return Ground(provider, place, groups, access.declare(settings, bucket, opts), bucket)
