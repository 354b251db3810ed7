"""Rules that relate resources: a table of what must exist beside a resource, and where a value must come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from infra.policy import resource_types as types
from infra.policy.access import denies_without_tls, statements
from infra.policy.conditions import (
    at_least,
    each_beside,
    equals,
    first,
    is_empty,
    is_given,
    is_on,
    must,
    not_off,
    one_beside,
    same,
)
from infra.policy.rule import DeclaredResource, Stack, StackRule, beside

SWITCHES = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
KEPT_DAYS = 7
FLOW_LOG_MUST = {
    types.FLOW_LOG: must("trafficType", same("ALL", "REJECT")),
    types.VNET_FLOW_LOG: first(
        must("enabled", is_on),
        must("identity.type", same("UserAssigned"), "identity.type must be UserAssigned: the account takes no keys"),
    ),
}


def _tls_only(policies: Sequence[DeclaredResource]) -> str | None:
    if any(denies_without_tls(one) for policy in policies for one in statements(policy.props.get("policy"))):
        return None
    return (
        "the bucket must have a BucketPolicy that denies s3:* to everybody on the bucket and its objects"
        " where aws:SecureTransport is false"
    )


def _logs(stack: Stack) -> Iterator[tuple[DeclaredResource, list[DeclaredResource]]]:
    """(network, its flow logs), if the settings ask for flow logs."""
    if stack.flow_logs:
        yield from beside(types.VPC, types.FLOW_LOG, "vpcId")(stack)
        yield from beside(types.VNET, types.VNET_FLOW_LOG, "targetResourceId")(stack)


def _logged(logs: Sequence[DeclaredResource]) -> str | None:
    if not logs:
        return "flowLogs is on: the network must have a flow log"
    wrong = next(filter(None, (FLOW_LOG_MUST[log.type](log.props) for log in logs)), None)
    return f"flowLogs is on, and in the network's flow log {wrong}" if wrong else None


def _templates(stack: Stack) -> Iterator[tuple[DeclaredResource, bool]]:
    """(instance with a launch template, whether this stack declares the template)."""
    own = {template.urn for template in stack.of(types.TEMPLATE)}
    for instance in stack.of(types.INSTANCE):
        if instance.props.get("launchTemplate") is not None:
            yield instance, bool(own & instance.links.get("launchTemplate", frozenset()))


def _own_template(own: bool) -> str | None:
    return None if own else "launchTemplate must be one that this stack declares: no rule checks another one"


def _machine_images(stack: Stack) -> Iterator[tuple[DeclaredResource, tuple[Any, bool, tuple[str, ...]]]]:
    """(machine, (its image, whether that will be the same at the next `up`, the images that settings name))."""
    own = {resource.urn for resource in stack.resources}
    for machine in stack.of(types.INSTANCE, types.TEMPLATE):
        for key in ("ami", "imageId"):
            if machine.props.get(key) is not None:
                made_here = bool(own & machine.links.get(key, frozenset()))
                yield machine, (machine.props[key], made_here or key in machine.ignores, stack.images)


def _fixed(part: tuple[Any, bool, tuple[str, ...]]) -> str | None:
    image, settled, named = part
    if settled or str(image) in named:
        return None
    return (
        f"the image {image} is neither made by this stack nor named in its settings, and may be another one at the"
        " next `up`: set baseImage, or let the machine keep its own (ignore_changes)"
    )


STACK_RULES = (
    StackRule(
        "own-launch-template",
        "An instance's launch template is this stack's own, as it decides what the instance does not set "
        "(CKV_AWS_79, CKV_AWS_341, CKV_AWS_8).",
        _templates,
        _own_template,
    ),
    StackRule(
        "ami-does-not-drift",
        "An image that was looked up is not looked up again for a machine that has one (no CKV or CIS number).",
        _machine_images,
        _fixed,
    ),
    StackRule(
        "default-group-closed",
        "What is in no group of ours lets nothing in and nothing out (CKV2_AWS_12, CIS AWS 5.0 5.5).",
        beside(types.VPC, types.DEFAULT_GROUP, "vpcId"),
        each_beside(
            "the network's default group must be declared (ec2.DefaultSecurityGroup), so that it lets nothing through",
            *(
                must(key, is_empty, f"{key} of the network's default group must be empty")
                for key in ("ingress", "egress")
            ),
        ),
    ),
    StackRule(
        "flow-logs-as-configured",
        "With flowLogs, what each network lets through and refuses is logged "
        "(CKV2_AWS_11, CIS AWS 5.0 3.7, CIS Azure 4.0 7.1.1.7).",
        _logs,
        _logged,
    ),
    StackRule(
        "bucket-public-access-blocked",
        "No bucket and no object in it can be made public "
        "(CKV2_AWS_6, CKV_AWS_53, CKV_AWS_54, CKV_AWS_55, CKV_AWS_56, CIS AWS 5.0 2.1.4).",
        beside(types.BUCKET, types.PUBLIC_ACCESS_BLOCK, "bucket"),
        each_beside("the bucket must have a BucketPublicAccessBlock", *(must(key, is_on) for key in SWITCHES)),
    ),
    StackRule(
        "bucket-encrypted",
        "What is in a bucket is encrypted at rest (CKV_AWS_19).",
        beside(types.BUCKET, types.ENCRYPTION, "bucket"),
        one_beside(
            "rules[]",
            {"applyServerSideEncryptionByDefault.sseAlgorithm": equals("AES256", "aws:kms", "aws:kms:dsse")},
            "the bucket must have a BucketServerSideEncryptionConfiguration with an sseAlgorithm",
        ),
    ),
    StackRule(
        "bucket-versioned",
        "What is overwritten in a bucket can be restored (CKV_AWS_21).",
        beside(types.BUCKET, types.VERSIONING, "bucket"),
        one_beside(
            "versioningConfiguration",
            {"status": equals("Enabled")},
            "the bucket must have a BucketVersioning that is Enabled",
        ),
    ),
    StackRule(
        "bucket-uploads-aborted",
        "An upload that never ended is not kept, and paid for, for ever (CKV_AWS_300, CKV2_AWS_61).",
        beside(types.BUCKET, types.BUCKET_LIFECYCLE, "bucket"),
        one_beside(
            "rules[]",
            {"status": equals("Enabled"), "abortIncompleteMultipartUpload.daysAfterInitiation": at_least(1)},
            "the bucket must have a BucketLifecycleConfiguration that aborts uploads which never ended",
        ),
    ),
    StackRule(
        "bucket-tls-only",
        "A bucket answers over TLS only (CKV_AWS_379, CIS AWS 5.0 2.1.1).",
        beside(types.BUCKET, types.BUCKET_POLICY, "bucket"),
        _tls_only,
    ),
    StackRule(
        "blobs-can-be-had-back",
        f"What is overwritten or deleted in a storage account can be restored for {KEPT_DAYS} days "
        "(CIS Azure 4.0 10.2.1, CIS Azure 4.0 10.2.2).",
        beside(types.ACCOUNT, types.BLOBS, "accountName"),
        each_beside(
            "the storage account must have BlobServiceProperties, which say how long it keeps what is deleted",
            must("isVersioningEnabled", is_on),
            *(
                must(f"{policy}.{key}", allowed)
                for policy in ("deleteRetentionPolicy", "containerDeleteRetentionPolicy")
                for key, allowed in (("enabled", is_on), ("days", at_least(KEPT_DAYS)))
            ),
        ),
    ),
    StackRule(
        "old-versions-deleted",
        "An old version of a blob is not kept, and billed, for ever "
        "(no CKV or CIS number: both want versions kept and neither says how long).",
        beside(types.ACCOUNT, types.ACCOUNT_LIFECYCLE, "accountName"),
        one_beside(
            "policy.rules[]",
            # Azure treats a missing `enabled` as true.
            {"enabled": not_off, "definition.actions.version.delete.daysAfterCreationGreaterThan": is_given},
            "the storage account must have a ManagementPolicy that deletes old versions of blobs",
        ),
    ),
)
