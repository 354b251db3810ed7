"""The table of prices: what it holds, what it refuses, and how it is refreshed from the providers' own lists."""

from __future__ import annotations

import datetime
import functools
import gzip
import io
import json
import re
import shutil
import tomllib
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import http_server
import pytest
from http_server import Answer, Asked

from infra.clouds.aws import price_list as aws_list
from infra.clouds.azure import price_list as azure_list
from infra.errors import OperationError, UsageError
from infra.prices import refresh, rewrite, table

TODAY = "2027-02-03"
REGIONS = {"aws": ("us-east-1", "us-west-2", "eu-west-1"), "azure": ("eastus", "westeurope", "westus3")}
TYPES = {
    "aws": [
        *("m6i.4xlarge", "m6i.8xlarge", "m7i.4xlarge", "m7i.8xlarge", "m7i.16xlarge", "m7i.48xlarge"),
        *("m8i.8xlarge", "r7iz.8xlarge"),
    ],
    "azure": [*("Standard_D16s_v6", "Standard_D32s_v6", "Standard_D64s_v6"), "Standard_D32_v5", "Standard_D32s_v7"],
}
OTHERS = {
    "aws": [
        *("gp3-gb-month", "ebs-snapshot-gb-month", "public-ipv4", "nat-gateway", "s3-gb-month"),
        *("cloudwatch-metric-month", "cloudwatch-request"),
    ],
    "azure": [
        *("managed-disk-P15", "managed-disk-E15", "public-ip-standard", "nat-gateway"),
        *("snapshot-gb-month", "gallery-version-gb-month", "blob-gb-month"),
    ],
}


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(table.TABLE.read_text())["list"]["price"]
    return found


# --- the table ---


@pytest.mark.parametrize("cloud", REGIONS)
def test_everything_that_the_stacks_declare_has_a_price_in_every_region(cloud: str) -> None:
    for region in REGIONS[cloud]:
        for sku in [*TYPES[cloud], *(f"{name}/spot" for name in TYPES[cloud]), *OTHERS[cloud]]:
            line = table.line(cloud, region, sku)
            assert line.usd_per_hour > 0, (region, sku)
            assert datetime.date.fromisoformat(line.as_of) <= datetime.date.today(), (region, sku)


def test_every_type_that_a_node_can_be_has_a_price() -> None:
    aws = pytest.importorskip("infra.clouds.aws.machine_types")
    azure = pytest.importorskip("infra.clouds.azure.machine_types")
    for region in REGIONS["aws"]:
        for name in (entry.name for entry in aws.TYPES.values() if entry.cluster):
            table.line("aws", region, name)
    for region in REGIONS["azure"]:
        for size in azure.SIZES.values():
            table.line("azure", region, size.name)
            for gb in (64, 250, azure.MOST_DISK_GB):
                table.line("azure", region, f"managed-disk-{azure.tier(size.storage, gb)}")


def test_every_price_says_where_it_is_from_and_stands_once() -> None:
    sources = tomllib.loads(table.TABLE.read_text())["sources"]
    assert {entry["source"] for entry in entries()} <= set(sources)
    for name, text in sources.items():
        assert name in refresh.SOURCES.values() or "not verified live" in text
    keys = [(entry["cloud"], entry["region"], entry["sku"]) for entry in entries()]
    assert len(set(keys)) == len(keys)
    assert len(rewrite.wanted(table.TABLE.read_text())) == len(keys), "a line that a refresh would not see"


def test_a_month_is_730_hours_and_many_cost_more_than_one() -> None:
    listed = {(entry["region"], entry["sku"]): entry for entry in entries() if entry["cloud"] == "aws"}
    disk = table.line("aws", "us-east-1", "gp3-gb-month", 3 * 250, what="disks")
    assert (disk.what, disk.count, disk.unit) == ("disks", 750, "GB")
    assert disk.usd_per_hour == pytest.approx(listed["us-east-1", "gp3-gb-month"]["usd_per_month"] * 750 / 730)
    node = table.line("aws", "us-east-1", "m7i.8xlarge", 3)
    assert (
        node.usd_per_hour == pytest.approx(3 * listed["us-east-1", "m7i.8xlarge"]["usd_per_hour"]) and not node.estimate
    )
    assert table.total([disk, node]) == pytest.approx(disk.usd_per_hour + node.usd_per_hour)


def test_spot_is_a_share_of_the_price_on_demand_and_says_that_it_is_an_estimate() -> None:
    full = table.line("aws", "eu-west-1", "m7i.8xlarge")
    spot = table.line("aws", "eu-west-1", "m7i.8xlarge/spot")
    assert 0.2 * full.usd_per_hour < spot.usd_per_hour < 0.8 * full.usd_per_hour
    assert spot.estimate and spot.what == "m7i.8xlarge/spot"


def test_what_has_no_price_is_an_error_that_names_where_it_has_one() -> None:
    with pytest.raises(UsageError, match=r"^no price for m7i.8xlarge in eu-north-1: priced are: eu-west-1, us-east-1"):
        table.line("aws", "eu-north-1", "m7i.8xlarge")
    with pytest.raises(UsageError, match=r"^no price for m7i.8xlarge/spot in eu-north-1: priced are: eu-west-1"):
        table.line("aws", "eu-north-1", "m7i.8xlarge/spot")
    with pytest.raises(UsageError, match=r"it is in no region of the table; add it to infra/prices/prices.toml$"):
        table.line("azure", "eastus", "quantum-bit")


# --- AWS's offer files, in their documented form ---

COLUMNS = [
    *("SKU", "OfferTermCode", "RateCode", "TermType", "PriceDescription", "EffectiveDate", "StartingRange"),
    *("EndingRange", "Unit", "PricePerUnit", "Currency", "RelatedTo", "LeaseContractLength", "PurchaseOption"),
    *("OfferingClass", "Product Family", "serviceCode", "Location", "Location Type", "Instance Type", "Tenancy"),
    *("Operating System", "usageType", "operation", "CapacityStatus", "Pre Installed S/W"),
]
META = (
    '"FormatVersion","v1.0"\n"Disclaimer","as it is, ""quoted"", here"\n'
    '"Publication Date","2027-02-01T00:00:00Z"\n"Version","1"\n'
)
INSTANCE = {
    "Instance Type": "m7i.8xlarge",
    "Tenancy": "Shared",
    "Operating System": "Linux",
    "operation": "RunInstances",
    "CapacityStatus": "Used",
    "Pre Installed S/W": "NA",
    "usageType": "BoxUsage:m7i.8xlarge",
}


def offer(code: str, *rows: dict[str, str]) -> bytes:
    text = io.StringIO()
    text.write(f'{META}"OfferCode","{code}"\n')
    text.write(",".join(f'"{name}"' for name in COLUMNS) + "\n")
    for row in rows:
        full = {"TermType": "OnDemand", "Currency": "USD", "StartingRange": "0", "EndingRange": "Inf", **row}
        text.write(",".join(f'"{full.get(name, "")}"' for name in COLUMNS) + "\n")
    return text.getvalue().encode()


def aws_offers(asked: Asked) -> Answer:
    _, _, code, _, region, _ = asked.path.split("/")
    prefix = {"us-east-1": "", "us-west-2": "USW2-", "eu-west-1": "EU-"}[region]
    rows = {
        "AmazonEC2": [
            {**INSTANCE, "PricePerUnit": "9.9", "Tenancy": "Dedicated"},
            {**INSTANCE, "PricePerUnit": "9.9", "Operating System": "Windows"},
            {**INSTANCE, "PricePerUnit": "9.9", "CapacityStatus": "UnusedCapacityReservation"},
            {**INSTANCE, "PricePerUnit": "9.9", "Pre Installed S/W": "SQL Web"},
            {**INSTANCE, "PricePerUnit": "0.9", "TermType": "Reserved"},
            {**INSTANCE, "PricePerUnit": "1.7000000000"},
            {"usageType": f"{prefix}EBS:VolumeUsage.gp3", "PricePerUnit": "0.0900000000", "Product Family": "Storage"},
            {"usageType": f"{prefix}EBS:VolumeP-IOPS.gp3", "PricePerUnit": "0.005"},
            {"usageType": f"{prefix}NatGateway-Hours", "PricePerUnit": "0.05"},
            {"usageType": f"{prefix}NatGateway-Bytes", "PricePerUnit": "0.045"},
            {"usageType": f"{prefix}EBS:SnapshotUsage", "PricePerUnit": "0.05"},
            {"usageType": f"{prefix}EBS:SnapshotUsage", "PricePerUnit": "0.06"},
        ],
        "AmazonVPC": [{"usageType": f"{prefix}PublicIPv4:InUseAddress", "PricePerUnit": "0.006"}],
        "AmazonS3": [
            {"usageType": f"{prefix}TimedStorage-ByteHrs", "PricePerUnit": "0.024", "EndingRange": "51200"},
            {"usageType": f"{prefix}TimedStorage-ByteHrs", "PricePerUnit": "0.022", "StartingRange": "51200"},
            {"usageType": f"{prefix}Tables-TimedStorage-ByteHrs", "PricePerUnit": "0.0265"},
        ],
        "AmazonCloudWatch": [
            {"usageType": f"{prefix}CW:MetricMonitorUsage", "PricePerUnit": "0.31", "EndingRange": "10000"},
            {"usageType": f"{prefix}CW:MetricMonitorUsage", "PricePerUnit": "0.1", "StartingRange": "10000"},
            {"usageType": f"{prefix}CW:Requests", "PricePerUnit": "0.00002"},
        ],
    }[code]
    body = offer(code, *rows)
    if code == "AmazonEC2" and "gzip" in asked.headers.get("accept-encoding", ""):
        return Answer(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})
    return Answer(body=body)


# --- Azure's Retail Prices, in their documented form ---


def item(meter: str, price: float, **changes: object) -> dict[str, object]:
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": "eastus",
        "meterName": meter,
        "productName": "Virtual Machines Dsv6 Series",
        "skuName": meter,
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": "Standard_D32s_v6",
        **changes,
    }


def azure_items(where: str) -> list[dict[str, object]]:
    if "'Virtual Machines'" in where:
        return [
            item("D32s v6", 9.9, productName="Virtual Machines Dsv6 Series Windows"),
            item("D32s v6 Low Priority", 0.3),
            item("D32s v6", 1.7),
            item("D32s v6 Spot", 0.5),
        ]
    if "P15 LRS Disk" in where:
        disk = {"productName": "Premium SSD Managed Disks", "serviceName": "Storage", "unitOfMeasure": "1/Month"}
        return [item("P15 LRS Disk", 40.0, **disk), item("P15 LRS Disk Mount", 2.0, **disk)]
    if "Hot LRS Data Stored" in where:
        blob = {"productName": "General Block Blob v2", "serviceName": "Storage"}
        return [
            item("Hot LRS Data Stored", 0.02, **blob),
            item("Hot LRS Data Stored", 0.019, tierMinimumUnits=51200.0, **blob),
        ]
    return []


def azure_answers(asked: Asked) -> Answer:
    """A page for each price, as if a page were that short."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(asked.path).query)
    found, at = azure_items(query["$filter"][0]), int(query.get("$skip", ["0"])[0])
    more = (
        f"http://{asked.headers['host']}{asked.path.partition('&')[0]}&$skip={at + 1}" if at + 1 < len(found) else None
    )
    return Answer(body=json.dumps({"Items": found[at : at + 1], "NextPageLink": more, "Count": 1}).encode())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copy(table.TABLE, tmp_path / "prices.toml"))


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Asked]]:
    """Both providers on loopback; what they were asked."""
    with http_server.serve(aws_offers) as aws, http_server.serve(azure_answers) as azure:
        point(monkeypatch, aws=aws.url, azure=azure.url)
        asked: list[Asked] = []
        yield asked
        asked += [*aws.asked, *azure.asked]


def point(monkeypatch: pytest.MonkeyPatch, **urls: str) -> None:
    of: dict[str, Callable[..., dict[str, set[float]]]] = {"aws": aws_list.prices, "azure": azure_list.prices}
    clouds = {
        cloud: functools.partial(of[cloud], base=f"{url}/offers" if cloud == "aws" else url)
        for cloud, url in urls.items()
    }
    monkeypatch.setattr(refresh, "CLOUDS", clouds)


def test_a_refresh_puts_in_what_the_providers_say_and_leaves_all_else(providers: list[Asked], copy: Path) -> None:
    done = refresh.refresh(copy, ("aws", "azure"), today=TODAY)
    before, after = table.TABLE.read_text().splitlines(), copy.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == len(done.found)
    for old, new in changed:
        assert f'as_of = "{TODAY}", source = "a' in new and "estimate" not in new
        assert old.split(", usd_per_")[0] == new.split(", usd_per_")[0]
    values = {(e["cloud"], e["region"], e["sku"]): e for e in tomllib.loads(copy.read_text())["list"]["price"]}
    for region in REGIONS["aws"]:
        assert values["aws", region, "m7i.8xlarge"]["usd_per_hour"] == 1.7
        assert values["aws", region, "gp3-gb-month"]["usd_per_month"] == 0.09
        assert values["aws", region, "nat-gateway"]["usd_per_hour"] == 0.05
        assert values["aws", region, "public-ipv4"]["usd_per_hour"] == 0.006
        assert values["aws", region, "s3-gb-month"]["usd_per_month"] == 0.024
        assert values["aws", region, "cloudwatch-metric-month"]["usd_per_month"] == 0.31
        assert values["aws", region, "cloudwatch-request"]["usd_per_hour"] == 0.00002
    assert values["azure", "eastus", "Standard_D32s_v6"]["usd_per_hour"] == 1.7
    assert values["azure", "eastus", "Standard_D32s_v6/spot"]["usd_per_hour"] == 0.5
    assert values["azure", "eastus", "managed-disk-P15"]["usd_per_month"] == 40.0
    assert values["azure", "eastus", "blob-gb-month"]["usd_per_month"] == 0.02


def test_what_a_provider_does_not_say_clearly_is_left_and_told(providers: list[Asked], copy: Path) -> None:
    done = refresh.refresh(copy, ("aws",), today=TODAY)
    assert "ebs-snapshot-gb-month in eu-west-1: aws has 2 different prices for it" in done.left
    assert "m6i.8xlarge in us-east-1: aws has no price for it" in done.left
    assert done.asked == len(done.found) + len(done.left)
    old = next(line for line in table.TABLE.read_text().splitlines() if '"eu-west-1", sku = "ebs-snap' in line)
    assert old in copy.read_text()


def test_a_refresh_of_one_cloud_asks_only_that_one(providers: list[Asked], copy: Path) -> None:
    refresh.refresh(copy, ("azure",), today=TODAY)
    assert 'cloud = "aws"' in copy.read_text()
    assert [line for line in copy.read_text().splitlines() if '"aws"' in line] == [
        line for line in table.TABLE.read_text().splitlines() if '"aws"' in line
    ]


def cut_off(asked: Asked) -> Answer:
    whole = aws_offers(asked)
    return Answer(
        body=whole.body[: len(whole.body) // 2], headers={**whole.headers, "Content-Length": str(len(whole.body))}
    )


@pytest.mark.parametrize(
    "cloud, answer, reason",
    [
        ("aws", cut_off, r".+"),
        ("aws", lambda _: Answer(status=503), "HTTP Error 503"),
        ("aws", lambda _: Answer(body=b"<html>sorry</html>"), "its form has changed"),
        ("azure", lambda _: Answer(status=429), "HTTP Error 429"),
        ("azure", lambda _: Answer(body=b"<html>sorry</html>"), "its form has changed"),
        ("azure", lambda _: Answer(body=b"{}"), "its form has changed"),
    ],
)
def test_a_failure_is_one_line_and_the_table_is_untouched(
    cloud: str, answer: Callable[[Asked], Answer], reason: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_server.serve(answer) as server:
        point(monkeypatch, **{cloud: server.url})
        with pytest.raises(OperationError) as caught:
            refresh.refresh(copy, (cloud,), today=TODAY)
    line = str(caught.value)
    assert re.match(rf"prices of {cloud} in \S+ cannot be had, the table is as it was: ", line) and re.search(
        reason, line
    )
    assert len(line.splitlines()) == 1
    assert copy.read_text() == table.TABLE.read_text()


def test_no_network_is_one_line_too(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point(monkeypatch, aws="http://127.0.0.1:9", azure="http://127.0.0.1:9")
    with pytest.raises(OperationError, match="Connection refused"):
        refresh.refresh(copy, ("aws", "azure"), today=TODAY)
    assert copy.read_text() == table.TABLE.read_text()


def test_an_amount_is_written_without_digits_that_mean_nothing() -> None:
    assert [rewrite.amount(price) for price in (1.6128, 38.0, 0.0208, 1.4000000000000001)] == [
        "1.6128",
        "38.0",
        "0.0208",
        "1.4",
    ]
