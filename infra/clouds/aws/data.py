"""The stack's bucket, for the data set and the checkpoints."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.clouds.aws.names import after, asking, named, partition, policy
from infra.clouds.aws.zones import short
from infra.clouds.naming import ID_TAG, OWNER_TAG, STACK_TAG
from infra.config.settings import Settings

OLD_DAYS = 7
"""Overwritten and deleted objects can be restored for so many days."""
UPLOAD_DAYS = 2
"""Unfinished multipart uploads are billed until they are aborted, after so many days."""


def name(settings: Settings, account: str) -> str:
    """Unique in the world by the stack's id (without one, by the account) and the region; at most 63 characters."""
    return named(settings, short(settings) if settings.stack_id else f"{account}-{short(settings)}")


def declare(settings: Settings, provider: aws.Provider, opts: pulumi.ResourceOptions) -> aws.s3.Bucket:
    """A private, encrypted, versioned bucket, TLS only. With keepData it outlives the stack."""
    wanted = name(settings, aws.get_caller_identity(opts=asking(provider)).account_id)
    retain = settings.cloud.keep_data
    opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(retain_on_delete=retain))
    bucket = aws.s3.Bucket(
        "data",
        bucket=wanted,
        force_destroy=not retain,
        opts=pulumi.ResourceOptions.merge(opts, _kept(settings, wanted, provider)),
    )
    closed = aws.s3.BucketPublicAccessBlock(
        "data-private",
        bucket=bucket.bucket,
        block_public_acls=True,
        block_public_policy=True,
        ignore_public_acls=True,
        restrict_public_buckets=True,
        opts=opts,
    )
    aws.s3.BucketOwnershipControls(
        "data-owner",
        bucket=bucket.bucket,
        rule=aws.s3.BucketOwnershipControlsRuleArgs(object_ownership="BucketOwnerEnforced"),
        opts=opts,
    )
    by_default = aws.s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs
    encrypted = aws.s3.BucketServerSideEncryptionConfigurationRuleArgs(
        apply_server_side_encryption_by_default=by_default(sse_algorithm="AES256")
    )
    aws.s3.BucketServerSideEncryptionConfiguration("data-encrypted", bucket=bucket.bucket, rules=[encrypted], opts=opts)
    versions = aws.s3.BucketVersioning(
        "data-versions",
        bucket=bucket.bucket,
        versioning_configuration=aws.s3.BucketVersioningVersioningConfigurationArgs(status="Enabled"),
        opts=opts,
    )
    _tidy(bucket, after(opts, versions))
    refuse = {
        "Sid": "OnlyTLS",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [bucket.arn, pulumi.Output.concat(bucket.arn, "/*")],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    aws.s3.BucketPolicy("data-tls", bucket=bucket.bucket, policy=policy(refuse), opts=after(opts, closed))
    return bucket


def _kept(settings: Settings, wanted: str, provider: aws.Provider) -> pulumi.ResourceOptions:
    """With keepData, import a bucket that an earlier `destroy` left; one that is in the state stays as it is."""
    if not settings.cloud.keep_data:
        return pulumi.ResourceOptions()
    ours = {STACK_TAG: settings.stack}
    # Never import somebody else's bucket: without an id the owner tag tells whose it is.
    ours |= {ID_TAG: settings.stack_id} if settings.stack_id else {OWNER_TAG: settings.cloud.owner}
    tagged = aws.resourcegroupstaggingapi.get_resources(
        resource_type_filters=["s3"],
        tag_filters=[
            aws.resourcegroupstaggingapi.GetResourcesTagFilterArgs(key=key, values=[value])
            for key, value in ours.items()
        ],
        opts=asking(provider),
    )
    arns = [found.resource_arn for found in tagged.resource_tag_mapping_lists]
    return pulumi.ResourceOptions(import_=wanted if f"arn:{partition(settings)}:s3:::{wanted}" in arns else None)


def _tidy(bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions) -> None:
    """Delete unfinished uploads and old versions after some days: they are billed, and ordinary listings hide them."""
    abort = aws.s3.BucketLifecycleConfigurationRuleAbortIncompleteMultipartUploadArgs
    expire = aws.s3.BucketLifecycleConfigurationRuleNoncurrentVersionExpirationArgs
    rule = aws.s3.BucketLifecycleConfigurationRuleArgs(
        id="tidy",
        status="Enabled",
        filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix=""),
        abort_incomplete_multipart_upload=abort(days_after_initiation=UPLOAD_DAYS),
        noncurrent_version_expiration=expire(noncurrent_days=OLD_DAYS),
    )
    aws.s3.BucketLifecycleConfiguration("data-tidy", bucket=bucket.bucket, rules=[rule], opts=opts)
