"""A stack's buckets: found by their tags, measured, and emptied with older versions and unfinished uploads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from infra.clouds.aws import api, removal
from infra.clouds.aws.place import INSIDE_TAG, AccountRegion, FoundResource, ResourceKind

COUNTED = 100_000
"""Counting stops after so many versions; the rest is reported as "more"."""


def _buckets(place: AccountRegion) -> Iterator[FoundResource]:
    s3 = place.client("s3")
    for item in api.pages(s3, "list_buckets", "Buckets", Prefix=f"trainyard-{place.claim.stack}"):
        name = item["Name"]
        tags = _tags(s3, name) if place.may_name(name) else {}
        if place.claim.is_of_stack(tags) and INSIDE_TAG not in tags:  # else it goes with its CloudFormation stack
            # Do not measure another owner's bucket: we may lack the rights, and it is not ours to count.
            held, size = ("", 0) if place.claim.whose(tags) else _measure(s3, name)
            price = place.price("s3-gb-month", size / 1e9) if size else 0.0
            yield FoundResource(tags, name, name, usd_per_hour=price, holds=held)


def _tags(s3: Any, bucket: str) -> dict[str, str]:
    """A bucket's tags; {} if it has none or no longer exists."""
    try:
        return api.tags(s3.get_bucket_tagging(Bucket=bucket))
    except api.FAILURES as error:
        if api.code(error) in ("NoSuchTagSet", "NoSuchBucket"):
            return {}
        raise


def _measure(s3: Any, bucket: str) -> tuple[str, int]:
    """(what the bucket holds, in words, empty for nothing; bytes). Stops at COUNTED versions, before the uploads."""
    count = size = 0
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        listed = page.get("Versions", [])
        count += len(listed) + len(page.get("DeleteMarkers", []))
        size += sum(item["Size"] for item in listed)
        if count >= COUNTED:
            return f"more than {count} objects (older versions counted), more than {_in_units(size)}", size
    uploads = len(api.pages(s3, "list_multipart_uploads", "Uploads", Bucket=bucket))
    more = f" and {uploads} unfinished uploads" if uploads else ""
    return f"{count} objects (older versions counted), {_in_units(size)}{more}" if count or uploads else "", size


def _in_units(size: int) -> str:
    """12.3 GB, 4.0 kB."""
    for unit, bytes_of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_of:
            return f"{size / bytes_of:.1f} {unit}"
    return f"{size} B"


def _remove(place: AccountRegion, name: str) -> None:
    s3 = place.client("s3")
    removal.until_free(lambda: _empty(s3, name))
    removal.call(s3, "delete_bucket", Bucket=name)


def _empty(s3: Any, bucket: str) -> None:
    """Delete every version of every object. A locked version is an error, not skipped."""
    for upload in api.pages(s3, "list_multipart_uploads", "Uploads", Bucket=bucket):
        s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        versions = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        if versions:
            doomed = [{key: item[key] for key in ("Key", "VersionId")} for item in versions]
            answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": doomed, "Quiet": True})
            for error in answer.get("Errors", []):
                raise ClientError({"Error": error}, "DeleteObjects")


BUCKET = ResourceKind("bucket", "s3:bucket", _buckets, _remove, is_global=True)
