"""AWS's public price list: the regional offer files, without credentials.

https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/reading-service-price-list-file-for-services.html

There is no way to ask it for a few prices only (the Price List Query API wants credentials, and the web pages' own
files are nobody's contract), and EC2's file has hundreds of megabytes a region. So it is read as it comes, line by
line, and only what the table wants is kept: little memory, no file. Spot prices are not in it.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, cast

SOURCE = "aws-offer"
"""What the table of prices calls it."""
BASE = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws"
TIMEOUT = 60.0
"""Seconds without a byte."""
_FIRST = "SKU"
"""The name of the first column: lines of metadata come before."""
USAGE = {
    "AmazonEC2": {
        "EBS:VolumeUsage.gp3": "gp3-gb-month",
        "EBS:SnapshotUsage": "ebs-snapshot-gb-month",
        "NatGateway-Hours": "nat-gateway",
    },
    "AmazonVPC": {"PublicIPv4:InUseAddress": "public-ipv4"},
    "AmazonS3": {"TimedStorage-ByteHrs": "s3-gb-month"},
    "AmazonCloudWatch": {"CW:MetricMonitorUsage": "cloudwatch-metric-month", "CW:Requests": "cloudwatch-request"},
}
"""Offer -> usage type, without its region's prefix -> our name for it."""
_INSTANCE = {
    "Operating System": "Linux",
    "Tenancy": "Shared",
    "CapacityStatus": "Used",
    "Pre Installed S/W": "NA",
    "operation": "RunInstances",
}

Row = dict[str, str]


def prices(region: str, skus: Sequence[str], base: str = BASE) -> dict[str, set[float]]:
    """The prices found of each sku, in USD an hour or a month; more than one: the file does not say which.

    Raises OSError when the list cannot be had or is cut off.
    """
    found: dict[str, set[float]] = {}
    for offer, usage in USAGE.items():
        if offer == "AmazonEC2" or set(usage.values()) & set(skus):
            for row in rows(f"{base}/{offer}/current/{region}/index.csv"):
                sku = sku_of(offer, row)
                if sku in skus:
                    found.setdefault(sku, set()).add(float(row["PricePerUnit"]))
    return found


def sku_of(offer: str, row: Row) -> str:
    """Our name for what a row of an offer file is the price of; empty for what we never declare."""
    if row.get("TermType") != "OnDemand" or row.get("Currency") != "USD":
        return ""
    if offer == "AmazonEC2" and all(row.get(key) == value for key, value in _INSTANCE.items()):
        return row["Instance Type"]
    usage = re.fullmatch(r"(?:[A-Z]{2,4}[0-9]?-)?(.+)", row.get("usageType", ""))
    # Storage is cheaper beyond so many terabytes: ours is in the first tier.
    return USAGE[offer].get(usage[1], "") if usage and row.get("StartingRange") in ("0", "", None) else ""


def rows(url: str) -> Iterator[Row]:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        packed = response.headers.get("Content-Encoding") == "gzip"
        stream = cast("IO[bytes]", gzip.GzipFile(fileobj=response) if packed else response)
        yield from table(io.TextIOWrapper(stream, encoding="utf-8", newline=""))
        if response.length:
            raise OSError(f"{url}: cut off, {response.length} bytes are missing")


def table(lines: Iterable[str]) -> Iterator[Row]:
    """The rows below the line of the columns' names."""
    names: list[str] = []
    for fields in csv.reader(lines):
        if names:
            row: dict[str, Any] = dict(zip(names, fields, strict=False))
            yield row
        elif fields and fields[0] == _FIRST:
            names = fields
    if not names:
        raise OSError("the price list has no line with the columns' names: its form has changed")
