"""Prices from AWS's public regional offer files, which need no credentials.

https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/reading-service-price-list-file-for-services.html

They cannot be queried (the Price List Query API needs credentials), and EC2's has hundreds of megabytes for each
region, so it is read as a stream, and only the wanted rows are kept. Spot prices are not in it.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import urllib.request
from collections.abc import Iterator, Sequence
from typing import IO, cast

from infra.prices.table import EVERYWHERE

SOURCE = "aws-offer"
"""Its name in the table of prices."""
BASE = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws"
TIMEOUT = 60.0
"""Read timeout in seconds."""
USAGE = {
    "AmazonEC2": {
        "EBS:VolumeUsage.gp3": "gp3-gb-month",
        "EBS:SnapshotUsage": "ebs-snapshot-gb-month",
        "NatGateway-Hours": "nat-gateway",
    },
    "AmazonVPC": {"PublicIPv4:InUseAddress": "public-ipv4"},
    "AmazonS3": {"TimedStorage-ByteHrs": "s3-gb-month"},
    "AmazonEKS": {"AmazonEKS-Hours:perCluster": "eks-cluster"},
    "awskms": {"KMS-Keys": "kms-key-month"},
    "AmazonECR": {"TimedStorage-ByteHrs": "ecr-gb-month"},
    "AmazonCloudWatch": {"CW:MetricMonitorUsage": "cloudwatch-metric-month", "CW:Requests": "cloudwatch-request"},
}
"""Offer -> usage type without its region's prefix -> our name for it."""
GLOBAL = {"AmazonRoute53": {"HostedZone": "route53-hosted-zone-month"}}
"""As USAGE, of the offers whose file for a region lacks what costs the same in all."""
_NAMES = USAGE | GLOBAL
LUSTRE = {
    "fsx-lustre-persistent2-125-gb-month": {
        "productfamily": "Storage",
        "filesystemtype": "Lustre",
        "deploymentoption": "Persistent",
        "storagetype": "SSD",
        "throughputcapacity": "125",
    }
}
"""Our names for storage of FSx for Lustre -> attributes of its row. They alone tell PERSISTENT_2 from PERSISTENT_1,
which has 50, 100 and 200 MB/s for each TiB. AWS's files and its API write the names of columns in several ways: here
they are in small letters alone."""
_FSX = "AmazonFSx"
_INSTANCE = {
    "Operating System": "Linux",
    "Tenancy": "Shared",
    "CapacityStatus": "Used",
    "Pre Installed S/W": "NA",
    "operation": "RunInstances",
}


def prices(region: str, skus: Sequence[str], base: str = BASE) -> dict[str, set[float]]:
    """The prices found for each sku, in USD an hour or a month; several: the file is ambiguous. OSError: see `rows`."""
    found: dict[str, set[float]] = {}
    everywhere = region == EVERYWHERE
    ours = {offer: set(usage.values()) for offer, usage in (GLOBAL if everywhere else USAGE).items()}
    if not everywhere:
        ours[_FSX] = set(LUSTRE)
    folder = "current" if everywhere else f"current/{region}"
    for offer, names in ours.items():
        if offer == "AmazonEC2" or names & set(skus):
            for row in rows(f"{base}/{offer}/{folder}/index.csv"):
                sku = sku_of(offer, row)
                if sku in skus:
                    found.setdefault(sku, set()).add(float(row["PricePerUnit"]))
    return found


def sku_of(offer: str, row: dict[str, str]) -> str:
    """Our name for the item of an offer file's row; empty for what we do not use."""
    if row.get("TermType") != "OnDemand" or row.get("Currency") != "USD":
        return ""
    if offer == "AmazonEC2" and all(row.get(key) == value for key, value in _INSTANCE.items()):
        return row["Instance Type"]
    if offer == _FSX:
        plain = {re.sub("[^a-z]", "", name.lower()): value for name, value in row.items()}
        return next((sku for sku, wanted in LUSTRE.items() if wanted.items() <= plain.items()), "")
    # Most services abbreviate the region in front, KMS spells it out.
    usage = re.fullmatch(r"(?:[a-z]{2}-[a-z]+-[0-9]-|[A-Z]{2,4}[0-9]?-)?(.+)", row.get("usageType", ""))
    # Take the first tier: storage is cheaper only beyond many terabytes.
    return _NAMES[offer].get(usage[1], "") if usage and row.get("StartingRange") in ("0", "", None) else ""


def rows(url: str) -> Iterator[dict[str, str]]:
    """The rows of an offer file, streamed. Raises OSError if it cannot be fetched or is cut off."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        packed = response.headers.get("Content-Encoding") == "gzip"
        stream = cast("IO[bytes]", gzip.GzipFile(fileobj=response) if packed else response)
        lines = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        # Lines of metadata come before the one with the columns' names.
        header = next((line for line in lines if re.match('"?SKU"?,', line)), "")
        if not header:
            raise OSError("the price list has no line with the columns' names: its form has changed")
        yield from csv.DictReader(lines, fieldnames=next(csv.reader([header])))
        if response.length:
            raise OSError(f"{url}: cut off, {response.length} bytes are missing")
