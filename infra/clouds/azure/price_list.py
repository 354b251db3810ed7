"""Prices from Azure's public Retail Prices API, which needs no credentials.

https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
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
    found: dict[str, set[float]] = {}
    if machines:
        names = " or ".join(f"armSkuName eq '{name}'" for name in machines)
        for item in items(base, f"serviceName eq 'Virtual Machines' and {_in(region)} and ({names})"):
            _put(found, machine_of(item), item)
    for sku in skus:
        meter = meter_of(sku)
        if meter:
            service, product, name = meter
            where = f"serviceName eq '{service}' and {_in(region)} and productName eq '{product}'"
            for item in items(base, f"{where} and meterName eq '{name}'"):
                if item["meterName"] == name and item["productName"] == product:
                    _put(found, sku, item)
    return {sku: values for sku, values in found.items() if sku in skus}


def machine_of(item: Item) -> str:
    """Our name for the machine of a price; empty for Windows, and for what is neither on demand nor Spot."""
    if "Windows" in item["productName"] or "Low Priority" in item["skuName"]:
        return ""
    spot = "/spot" if item["skuName"].endswith(" Spot") else ""
    return f"{item['armSkuName']}{spot}"


def meter_of(sku: str) -> tuple[str, str, str] | None:
    """(service, product, meter) of a sku that is no machine; None if unknown."""
    disk = _DISK.fullmatch(sku)
    return ("Storage", _DISKS[disk[2]], f"{disk[1]} LRS Disk") if disk else _OTHERS.get(sku)


def items(base: str, where: str) -> Iterator[Item]:
    """Every price that matches a filter, over all pages."""
    url = f"{base}?$filter={urllib.parse.quote(where + _CONSUMPTION)}"
    while url:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            try:
                page = json.load(response)
                yield from page["Items"]
                url = page.get("NextPageLink") or ""
            except (ValueError, KeyError, TypeError):
                raise OSError(f"{base}: its answer is not as documented: its form has changed") from None


_CONSUMPTION = " and priceType eq 'Consumption'"


def _in(region: str) -> str:
    return f"armRegionName eq '{region}'"


def _put(found: dict[str, set[float]], sku: str, item: Item) -> None:
    # Take the first tier: storage is cheaper only beyond many terabytes. Each meter is billed in its primary region.
    if sku and not item.get("tierMinimumUnits") and item.get("isPrimaryMeterRegion", True):
        found.setdefault(sku, set()).add(float(item["retailPrice"]))
