"""Prices from Azure's public Retail Prices API, which needs no credentials.

https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SOURCE = "azure-retail"
"""Its name in the table of prices."""
BASE = "https://prices.azure.com/api/retail/prices"
TIMEOUT = 60.0
"""Read timeout in seconds."""
_MACHINE = re.compile(r"Standard_[A-Za-z0-9_]+(/spot)?")
_DISK = re.compile(r"managed-disk-(([PE])[0-9]+)")
_DISKS = {"P": "Premium SSD Managed Disks", "E": "Standard SSD Managed Disks"}
_OTHERS = {
    "public-ip-standard": ("Virtual Network", "IP Addresses", "Standard IPv4 Static Public IP"),
    "nat-gateway": ("NAT Gateway", "NAT Gateway", "Standard Gateway"),
    "snapshot-gb-month": ("Storage", "Standard HDD Managed Disks", "LRS Snapshots"),
    "gallery-version-gb-month": ("Storage", "Standard HDD Managed Disks", "LRS Snapshots"),
    "blob-gb-month": ("Storage", "General Block Blob v2", "Hot LRS Data Stored"),
}
"""Sku -> (service, product, meter). Gallery versions are billed as the snapshots that they are made from."""

Item = Mapping[str, Any]


def prices(region: str, skus: Sequence[str], base: str = BASE) -> dict[str, set[float]]:
    """The prices found for each sku, in USD per hour or per month. More than one: the API's answer is ambiguous.

    Raises OSError when the prices cannot be fetched.
    """
    machines = sorted({sku.removesuffix("/spot") for sku in skus if _MACHINE.fullmatch(sku)})
    here = f"armRegionName eq '{region}'"
    found: defaultdict[str, set[float]] = defaultdict(set)
    if machines:
        names = " or ".join(f"armSkuName eq '{name}'" for name in machines)
        for item in items(base, f"serviceName eq 'Virtual Machines' and {here} and ({names})"):
            found[machine_of(item)].add(float(item["retailPrice"]))
    for sku in skus:
        if meter := meter_of(sku):
            service, product, name = meter
            where = f"serviceName eq '{service}' and {here} and productName eq '{product}' and meterName eq '{name}'"
            same = (item for item in items(base, where) if (item["meterName"], item["productName"]) == (name, product))
            found[sku] |= {float(item["retailPrice"]) for item in same}
    return {sku: values for sku, values in found.items() if sku in skus and values}


def machine_of(item: Item) -> str:
    """Our name for the machine of a price; empty for Windows, and for what is neither on demand nor Spot."""
    if "Windows" in item["productName"] or "Low Priority" in item["skuName"]:
        return ""
    return f"{item['armSkuName']}{'/spot' if item['skuName'].endswith(' Spot') else ''}"


def meter_of(sku: str) -> tuple[str, str, str] | None:
    """(service, product, meter) of a sku that is no machine; None if unknown."""
    disk = _DISK.fullmatch(sku)
    return ("Storage", _DISKS[disk[2]], f"{disk[1]} LRS Disk") if disk else _OTHERS.get(sku)


def items(base: str, where: str) -> Iterator[Item]:
    """Every price of a first tier that matches a filter, over all pages. Storage is cheaper only beyond many terabytes.
    Each meter is billed in its primary region."""
    url = f"{base}?$filter={urllib.parse.quote(where)}%20and%20priceType%20eq%20%27Consumption%27"
    while url:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            try:
                page = json.load(response)
                url = page.get("NextPageLink") or ""
                found = list(page["Items"])
            except (ValueError, KeyError, TypeError):
                raise OSError(f"{base}: its answer does not have the documented form") from None
        for item in found:
            if not item.get("tierMinimumUnits") and item.get("isPrimaryMeterRegion", True):
                yield item
