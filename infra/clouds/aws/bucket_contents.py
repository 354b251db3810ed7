"""Measures and empties a bucket: objects, their older versions, and unfinished uploads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from infra.clouds.aws import api

COUNTED = 100_000
"""Counting stops after so many versions; the rest is reported as "more"."""


@dataclass(frozen=True)
class Held:
    """Everything in a bucket that is billed."""

    versions: int
    bytes: int
    uploads: int = 0
    more: bool = False

    def said(self) -> str:
        """A summary for people; empty for an empty bucket."""
        if not self.versions and not self.uploads:
            return ""
        least = "more than " if self.more else ""
        parts = f" and {self.uploads} unfinished uploads" if self.uploads else ""
        return f"{least}{self.versions} objects (older versions counted), {least}{size(self.bytes)}{parts}"


def size(count: int) -> str:
    """12.3 GB, 4.0 kB."""
    for unit, bytes_of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_of:
            return f"{count / bytes_of:.1f} {unit}"
    return f"{count} B"


def tags(client: Any, bucket: str) -> dict[str, str]:
    """A bucket's tags; {} if it has none or no longer exists."""
    try:
        return {entry["Key"]: entry["Value"] for entry in client.get_bucket_tagging(Bucket=bucket)["TagSet"]}
    except api.FAILURES as error:
        if api.code(error) in ("NoSuchTagSet", "NoSuchBucket"):
            return {}
        raise


def measure(client: Any, bucket: str) -> Held:
    """Count and sum everything in a bucket. Stops at COUNTED versions; then uploads are not counted."""
    count, total = 0, 0
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
        listed = page.get("Versions", [])
        count += len(listed) + len(page.get("DeleteMarkers", []))
        total += sum(item["Size"] for item in listed)
        if count >= COUNTED:
            return Held(count, total, more=True)
    return Held(count, total, len(api.pages(client, "list_multipart_uploads", "Uploads", Bucket=bucket)))


def empty(client: Any, bucket: str) -> None:
    """Delete every version of every object. A locked version is an error, not skipped."""
    for upload in api.pages(client, "list_multipart_uploads", "Uploads", Bucket=bucket):
        client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
        doomed = [
            {"Key": item["Key"], "VersionId": item["VersionId"]}
            for item in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        ]
        if doomed:
            answer = client.delete_objects(Bucket=bucket, Delete={"Objects": doomed, "Quiet": True})
            for error in answer.get("Errors", []):
                raise ClientError({"Error": error}, "DeleteObjects")
