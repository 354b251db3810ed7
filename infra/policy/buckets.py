"""S3 buckets: what must stand beside each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.policy.access import Statement, statements
from infra.policy.rule import Resource, Rule, StackRule, beside, block, is_on, items

BUCKET = "aws:s3/bucket:Bucket"
ACCESS = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
ENCRYPTION = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
POLICY = "aws:s3/bucketPolicy:BucketPolicy"
SWITCHES = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")


def _blocked(blocks: Sequence[Resource]) -> str | None:
    if not blocks:
        return "the bucket must have a BucketPublicAccessBlock"
    off = [key for found in blocks for key in SWITCHES if not is_on(found.props.get(key))]
    return f"the bucket's public access block must have {', '.join(off)}" if off else None


def _encrypted(configurations: Sequence[Resource]) -> str | None:
    for configuration in configurations:
        for rule in items(configuration.props, "rules"):
            if block(rule, "applyServerSideEncryptionByDefault").get("sseAlgorithm") in (
                "AES256",
                "aws:kms",
                "aws:kms:dsse",
            ):
                return None
    return "the bucket must have a BucketServerSideEncryptionConfiguration with an sseAlgorithm"


def _versioned(configurations: Sequence[Resource]) -> str | None:
    if any(block(found.props, "versioningConfiguration").get("status") == "Enabled" for found in configurations):
        return None
    return "the bucket must have a BucketVersioning that is Enabled"


def _tidied(configurations: Sequence[Resource]) -> str | None:
    for configuration in configurations:
        for rule in items(configuration.props, "rules"):
            days = block(rule, "abortIncompleteMultipartUpload").get("daysAfterInitiation")
            if rule.get("status") == "Enabled" and days is not None and int(days) > 0:
                return None
    return "the bucket must have a BucketLifecycleConfiguration that aborts uploads which never ended"


def _tls_only(policies: Sequence[Resource]) -> str | None:
    if any(_denies_plain(statement) for policy in policies for statement in statements(policy.props.get("policy"))):
        return None
    return (
        "the bucket must have a BucketPolicy that denies s3:* to everybody on the bucket and its objects"
        " where aws:SecureTransport is false"
    )


def _denies_plain(statement: Statement) -> bool:
    condition = statement.condition.get("Bool", {}).get("aws:SecureTransport")
    objects = [resource.endswith("/*") for resource in statement.resources]
    return (
        statement.effect == "Deny"
        and "*" in statement.principals
        and ("s3:*" in statement.actions or "*" in statement.actions)
        and str(condition).lower() == "false"
        and (("*" in statement.resources) or (True in objects and False in objects))
    )


def _bucket_statements(resource: Resource) -> Iterator[Statement]:
    yield from statements(resource.props.get("policy"))


def _public(statement: Statement) -> str | None:
    if statement.effect == "Allow" and "*" in statement.principals:
        return "a bucket's policy must not allow anything to everybody (Principal *)"
    return None


RULES = (
    Rule(
        name="bucket-policy-not-public",
        description="No bucket's policy allows anything to everybody.",
        numbers=("CKV_AWS_70",),
        parts={POLICY: _bucket_statements},
        problem=_public,
    ),
)
STACK_RULES = (
    StackRule(
        name="bucket-public-access-blocked",
        description="No bucket and no object in it can be made public.",
        numbers=("CKV2_AWS_6", "CKV_AWS_53", "CKV_AWS_54", "CKV_AWS_55", "CKV_AWS_56", "CIS AWS 5.0 2.1.4"),
        parts=beside(BUCKET, ACCESS, "bucket"),
        problem=_blocked,
    ),
    StackRule(
        name="bucket-encrypted",
        description="What is in a bucket is encrypted at rest.",
        numbers=("CKV_AWS_19",),
        parts=beside(BUCKET, ENCRYPTION, "bucket"),
        problem=_encrypted,
    ),
    StackRule(
        name="bucket-versioned",
        description="What is overwritten in a bucket can be had back.",
        numbers=("CKV_AWS_21",),
        parts=beside(BUCKET, VERSIONING, "bucket"),
        problem=_versioned,
    ),
    StackRule(
        name="bucket-uploads-aborted",
        description="An upload that never ended is not kept, and paid for, for ever.",
        numbers=("CKV_AWS_300", "CKV2_AWS_61"),
        parts=beside(BUCKET, LIFECYCLE, "bucket"),
        problem=_tidied,
    ),
    StackRule(
        name="bucket-tls-only",
        description="A bucket answers over TLS only.",
        numbers=("CKV_AWS_379", "CIS AWS 5.0 2.1.1"),
        parts=beside(BUCKET, POLICY, "bucket"),
        problem=_tls_only,
    ),
)
