"""A stack's file systems, FSx for Lustre: found by their tags, and removed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from botocore.exceptions import ClientError

from infra.clouds.aws import api, eks, pcluster_config, removal
from infra.clouds.aws.lustre import MB_S_PER_TIB, SKU
from infra.clouds.aws.place import AccountRegion, FoundResource, ResourceKind

WAIT_S = 3600.0
"""Seconds for a file system to go."""


def _file_systems(place: AccountRegion) -> Iterator[FoundResource]:
    for item in api.pages(place.client("fsx"), "describe_file_systems", "FileSystems"):
        if place.is_of_stack(item):
            name, size = item["FileSystemId"], item["StorageCapacity"]
            known = item.get("LustreConfiguration", {}).get("PerUnitStorageThroughput") == MB_S_PER_TIB
            price = place.price(SKU, size) if known else None
            # Without `holds`: what is in it is in the bucket as well.
            yield FoundResource(api.tags(item), f"{name} of {size} GB", name, usd_per_hour=price)


def _remove_file_system(place: AccountRegion, name: str) -> None:
    """Delete a file system, its links to buckets with it, and wait: its interfaces hold the subnet until then."""
    client, end = place.client("fsx"), time.monotonic() + WAIT_S
    removal.call(client, "delete_file_system", FileSystemId=name, LustreConfiguration={"SkipFinalBackup": True})
    while any(item["FileSystemId"] == name for item in api.pages(client, "describe_file_systems", "FileSystems")):
        if time.monotonic() > end:
            raise ClientError({"Error": {"Code": "Timeout", "Message": "it is still there"}}, "DeleteFileSystem")
        time.sleep(removal.POLL_S)


FILE_SYSTEM = ResourceKind(
    "file system",
    "fsx:file-system fsx:association",
    _file_systems,
    _remove_file_system,
    only=(pcluster_config.CLUSTER, eks.CLUSTER),
)
