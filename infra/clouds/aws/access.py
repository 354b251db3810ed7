"""The machines' rights (an instance profile for the stack's bucket and for SSM), and the operator's SSH key."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.clouds.aws.names import named, policy
from infra.config.settings import Settings

AGENT = (
    "ssm:UpdateInstanceInformation",
    *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
    *(f"ec2messages:{verb}Message" for verb in ("Acknowledge", "Delete", "Fail")),
    *("ec2messages:GetEndpoint", "ec2messages:GetMessages", "ec2messages:SendReply"),
)
"""What Systems Manager's agent needs to register, and to receive and run commands. AWS's own policy for it
(AmazonSSMManagedInstanceCore) also lets any process on a node read every parameter and document of the account."""
BUCKET = ("s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads")
OBJECTS = (
    *("s3:GetObject", "s3:PutObject", "s3:DeleteObject"),  # old checkpoints are deleted
    *("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"),
)
METRICS = "Trainyard"
"""CloudWatch namespace of the metrics that bootstrap/aws-xeon/monitor.py sends."""


@dataclass(frozen=True)
class Access:
    """What every machine is given."""

    profile: pulumi.Output[str]
    key: pulumi.Output[str]
    rights: list[pulumi.Resource]
    """Machines depend on these: one that boots earlier has no rights yet."""


def key(settings: Settings, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """Declare the operator's key; returns its name."""
    return aws.ec2.KeyPair("key", key_name=named(settings), public_key=settings.public_key, opts=opts).key_name


def declare(settings: Settings, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions) -> Access:
    """Declare the role of the machines, what it may do, and the operator's key. It may use this bucket only, Systems
    Manager, and, with monitoring, send metrics."""
    role = aws.iam.Role(
        "role",
        name=named(settings),
        description=f"Machines of the Trainyard stack {settings.stack}",
        assume_role_policy=policy({"Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}),
        opts=opts,
    )
    policies = {
        # AWS cannot restrict any of these actions to a resource.
        "ssm": policy({"Action": AGENT, "Resource": "*"}),
        "data": policy(
            {"Action": BUCKET, "Resource": bucket.arn},
            {"Action": OBJECTS, "Resource": pulumi.Output.concat(bucket.arn, "/*")},
        ),
    }
    if settings.cloud.monitoring:
        # PutMetricData takes no resource, so a condition restricts it to our namespace.
        ours = {"StringEquals": {"cloudwatch:namespace": METRICS}}
        policies["metrics"] = policy({"Action": "cloudwatch:PutMetricData", "Resource": "*", "Condition": ours})
    rights: list[pulumi.Resource] = [
        aws.iam.RolePolicy(f"role-{what}", name=named(settings, what), role=role.name, policy=text, opts=opts)
        for what, text in policies.items()
    ]
    profile = aws.iam.InstanceProfile("profile", name=named(settings), role=role.name, opts=opts)
    return Access(profile.name, key(settings, opts), rights)
