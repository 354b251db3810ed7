"""ParallelCluster from Pulumi: AWS's CloudFormation custom resource, in a stack of ours around it.

    provider stack   AWS's template of a version: a Lambda function that runs ParallelCluster
    wrapper stack    our template with one Custom::PclusterCluster, which the function makes, changes and deletes
    cluster's stack  made by the function, with ParallelCluster's name of the cluster: head, queue, names, logs

Pulumi sees the first two. Everything in the third has the stack's tags, and the audit counts it to the wrapper.
https://docs.aws.amazon.com/parallelcluster/latest/ug/cloudformation-v3.html
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import access, names, node_script, pcluster_config
from infra.clouds.aws.names import named, partition, policy, region, titled
from infra.clouds.aws.pcluster_config import Parts
from infra.clouds.aws.place import AROUND
from infra.config.settings import Settings
from infra.errors import UsageError

PATH = "/parallelcluster/"
"""IAM path of the nodes' policy: the function may attach policies of this path only, and AWS's own."""
WRAPPER = AROUND.removeprefix("-")
PROVIDER = "pcluster"
CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
TEMPLATE_BYTES = 51_200
"""CloudFormation's limit on a template that is sent with the request."""
TIMEOUTS = pulumi.CustomTimeouts(create="90m", update="90m", delete="90m")
BUCKET = (
    *("s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketVersions", "s3:GetBucketVersioning"),
    *("s3:GetObject", "s3:GetObjectVersion", "s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"),
)
"""What the function does in the cluster's bucket: it keeps templates and the node configuration there."""
OUTPUTS = {
    **{"PublicIp": "headNode.publicIpAddress", "PrivateIp": "headNode.privateIpAddress"},
    **{"Instance": "headNode.instanceId", "Validation": "validationMessages"},
}
"""The wrapper's outputs: what the function returns, by the names of `pcluster describe-cluster`."""
SCRIPT_PARAMETER, IMAGE_PARAMETER = "Bootstrap", "Image"
_PLACE = "{0}-aws-parallelcluster.s3.{0}.amazonaws.com{1}/parallelcluster/{2}/templates/custom_resource/cluster.yaml"


@dataclass(frozen=True)
class Made:
    """What the inventory needs of the cluster."""

    stack: aws.cloudformation.Stack
    public_ip: pulumi.Output[str]
    private_ip: pulumi.Output[str]
    instance: pulumi.Output[str]
    """The head's instance id."""


def name(settings: Settings) -> str:
    """ParallelCluster's name of the cluster: at most 51 characters of the 60 that it takes."""
    return named(settings)


def template_url(settings: Settings) -> str:
    """Where AWS keeps the provider's template of our version, in each region."""
    china = ".cn" if partition(settings) == "aws-cn" else ""
    return "https://" + _PLACE.format(region(settings), china, pcluster_config.VERSION)


def template(settings: Settings, parts: Parts, token: str) -> str:
    """The wrapper's template. Raises UsageError if CloudFormation would not take its size.

    Script and image are parameters, so that Pulumi can leave them as they are for a running cluster.
    """
    script = {"Fn::Sub": f"s3://{parts.bucket}/{key('${' + SCRIPT_PARAMETER + '}')}"}
    image = None if parts.image is None else {"Ref": IMAGE_PARAMETER}
    cluster = {
        "ServiceToken": token,
        "ClusterName": name(settings),
        "ClusterConfiguration": pcluster_config.configuration(settings, replace(parts, script=script, image=image)),
        "SuppressValidators": pcluster_config.suppressed(settings),
        "DeletionPolicy": "Delete",
    }
    body = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"ParallelCluster of the Trainyard stack {settings.stack}",
        "Parameters": {wanted: {"Type": "String"} for wanted in _parameters("", parts.image)},
        "Resources": {
            "Cluster": {"Type": "Custom::PclusterCluster", "DeletionPolicy": "Delete", "Properties": cluster}
        },
        "Outputs": {output: {"Value": {"Fn::GetAtt": ["Cluster", of]}} for output, of in OUTPUTS.items()},
    }
    text = json.dumps(body, separators=(",", ":"))
    if (size := len(text.encode())) > TEMPLATE_BYTES:
        raise UsageError(f"the cluster's template: {size} bytes, and CloudFormation takes {TEMPLATE_BYTES}")
    return text


def key(digest: str) -> str:
    """The script's key in the bucket."""
    return f"bootstrap/{digest}.sh"


def upload(settings: Settings, script: str, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions) -> pulumi.Resource:
    """The script in the bucket. An older one stays: a running cluster's nodes go on with it."""
    digest = node_script.digest(script)
    return aws.s3.BucketObjectv2(
        f"bootstrap-{digest}",
        bucket=bucket.bucket,
        key=key(digest),
        content=script,
        content_type="text/x-shellscript",
        tags=titled(settings, "bootstrap"),
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(retain_on_delete=True)),
    )


def rights(settings: Settings, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions) -> aws.iam.Policy:
    """The policy of all nodes: the stack's bucket, and Systems Manager's agent."""
    return aws.iam.Policy(
        "nodes-rights",
        name=named(settings, "nodes"),
        path=PATH,
        description=f"Nodes of the Trainyard stack {settings.stack}",
        policy=policy(
            {"Action": access.AGENT, "Resource": "*"},  # AWS cannot restrict any of these to a resource
            {"Action": access.BUCKET, "Resource": bucket.arn},
            {"Action": access.OBJECTS, "Resource": pulumi.Output.concat(bucket.arn, "/*")},
        ),
        opts=opts,
    )


def provider(settings: Settings, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions) -> aws.cloudformation.Stack:
    """AWS's own stack with the function that runs ParallelCluster; it may use our bucket as well."""
    own = aws.iam.Policy(
        "pcluster-bucket",
        name=named(settings, "pcluster-bucket"),
        path=PATH,
        description=f"ParallelCluster of the Trainyard stack {settings.stack}",
        policy=policy({"Action": BUCKET, "Resource": [bucket.arn, pulumi.Output.concat(bucket.arn, "/*")]}),
        opts=opts,
    )
    return aws.cloudformation.Stack(
        "pcluster",
        name=named(settings, PROVIDER),
        template_url=template_url(settings),
        parameters={"AdditionalIamPolicies": own.arn},
        capabilities=CAPABILITIES,
        # A stack that failed leaves nothing, and the next `up` makes it anew.
        on_failure="DELETE",
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(custom_timeouts=TIMEOUTS)),
    )


def declare(
    settings: Settings,
    parts: dict[str, pulumi.Input[Any]],
    token: pulumi.Input[str],
    digest: str,
    opts: pulumi.ResourceOptions,
) -> Made:
    """The cluster. `parts`: the fields of Parts; `opts` names what must exist before it and is removed after it."""
    body = pulumi.Output.all(token=token, **parts).apply(
        lambda known: template(settings, Parts(**{k: v for k, v in known.items() if k != "token"}), known["token"])
    )
    # No tag Name: the function hands the stack's tags on to all machines, which have names of ParallelCluster's.
    stack = aws.cloudformation.Stack(
        "cluster",
        name=named(settings, WRAPPER),
        template_body=body,
        parameters=_parameters(digest, parts.get("image")),
        on_failure="DELETE",
        opts=pulumi.ResourceOptions.merge(
            opts,
            pulumi.ResourceOptions(
                custom_timeouts=TIMEOUTS,
                # ParallelCluster changes neither on a cluster that runs: with replaceNodes the cluster is made anew.
                ignore_changes=None if settings.cloud.replace_nodes else ["parameters"],
                replace_on_changes=["parameters", "name"],
                delete_before_replace=True,
            ),
        ),
    )

    def output(name: str) -> pulumi.Output[str]:
        return stack.outputs.apply(lambda found: str(found[name]))

    return Made(stack, output("PublicIp"), output("PrivateIp"), output("Instance"))


def _parameters(digest: str, image: Any) -> dict[str, Any]:
    return {SCRIPT_PARAMETER: digest, **({} if image is None else {IMAGE_PARAMETER: image})}


def check_size(settings: Settings) -> None:
    """Raise UsageError if the wrapper's template would be too large, whatever the ids will be."""
    longest = dict.fromkeys(("head_subnet", "queue_subnet", "group", "key", "file_system", "bucket"), "x" * 64)
    arn = names.arn(settings, "lambda", "0" * 12, "function:" + "x" * 64)
    image = None if settings.image == "bake" else settings.image
    template(settings, Parts(**longest, rights="x" * 128, script="", image=image), arn)
