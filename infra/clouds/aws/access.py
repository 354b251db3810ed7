"""The machines' rights (an instance profile for the stack's bucket and for SSM), and the operator's SSH key."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.clouds.aws.names import named
from infra.config.settings import Settings

AGENT = (
    "ssm:UpdateInstanceInformation",
    *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
    *(f"ec2messages:{verb}Message" for verb in ("Acknowledge", "Delete", "Fail")),
    *("ec2messages:GetEndpoint", "ec2messages:GetMessages", "ec2messages:SendReply"),
)
"""What Systems Manager's agent needs to register, and to receive and run commands.

Not AWS's own policy AmazonSSMManagedInstanceCore: it also allows ssm:GetParameter(s) on every parameter of the account
and ssm:GetDocument on every document, so any process on a node could read the account's secrets.
"""
METRICS = "Trainyard"
"""CloudWatch namespace of the metrics that bootstrap/aws-xeon/monitor.py sends."""
_VERSION = "2012-10-17"
"""Version of the policy language."""


@dataclass(frozen=True)
class Access:
    """What every machine is given."""

    profile: pulumi.Output[str]
    key: pulumi.Output[str]
    rights: list[pulumi.Resource]
    """Machines depend on these: one that boots earlier has no rights yet."""


def declare(settings: Settings, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions) -> Access:
    key = aws.ec2.KeyPair("key", key_name=named(settings), public_key=settings.public_key, opts=opts)
    role = aws.iam.Role(
        "role",
        name=named(settings),
        description=f"Machines of the Trainyard stack {settings.stack}",
        assume_role_policy=pulumi.Output.json_dumps(
            {
                "Version": _VERSION,
                "Statement": [
                    {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
                ],
            }
        ),
        opts=opts,
    )
    # AWS cannot restrict any of these actions to a resource.
    agent = json.dumps(
        {"Version": _VERSION, "Statement": [{"Effect": "Allow", "Action": list(AGENT), "Resource": "*"}]}
    )
    called = aws.iam.RolePolicy("role-ssm", name=named(settings, "ssm"), role=role.name, policy=agent, opts=opts)
    own = aws.iam.RolePolicy(
        "role-data", name=named(settings, "data"), role=role.name, policy=_own_bucket(bucket.arn), opts=opts
    )
    rights: list[pulumi.Resource] = [called, own]
    if settings.cloud.monitoring:
        rights.append(
            aws.iam.RolePolicy(
                "role-metrics", name=named(settings, "metrics"), role=role.name, policy=_metrics(), opts=opts
            )
        )
    profile = aws.iam.InstanceProfile("profile", name=named(settings), role=role.name, opts=opts)
    return Access(profile.name, key.key_name, rights)


def _metrics() -> str:
    """Allow writing metrics in our namespace. PutMetricData takes no resource, so a condition restricts it."""
    write = {
        "Effect": "Allow",
        "Action": "cloudwatch:PutMetricData",
        "Resource": "*",
        "Condition": {"StringEquals": {"cloudwatch:namespace": METRICS}},
    }
    return json.dumps({"Version": _VERSION, "Statement": [write]})


def _own_bucket(arn: pulumi.Output[str]) -> pulumi.Output[str]:
    """Allow reading, writing and deleting this bucket's objects (old checkpoints are deleted), but not its settings."""
    listing = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"],
        "Resource": arn,
    }
    objects = {
        "Effect": "Allow",
        "Action": [
            *("s3:GetObject", "s3:PutObject", "s3:DeleteObject"),
            *("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"),
        ],
        "Resource": pulumi.Output.concat(arn, "/*"),
    }
    return pulumi.Output.json_dumps({"Version": _VERSION, "Statement": [listing, objects]})
