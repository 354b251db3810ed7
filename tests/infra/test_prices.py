"""The table of prices: what it holds, and what it refuses."""

from __future__ import annotations

import datetime
import tomllib
from typing import Any

import pytest

from infra.errors import UsageError
from infra.prices import refresh, table

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
        *("cloudwatch-metric-month", "cloudwatch-request", "c5n.2xlarge", "fsx-lustre-persistent2-125-gb-month"),
        *("eks-cluster", "kms-key-month", "ecr-gb-month", "route53-hosted-zone-month"),
    ],
    "azure": [
        *("managed-disk-P15", "managed-disk-E15", "public-ip-standard", "nat-gateway"),
        *("snapshot-gb-month", "gallery-version-gb-month", "blob-gb-month"),
    ],
}


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(table.TABLE.read_text())["list"]["price"]
    return found


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
    document = tomllib.loads(table.TABLE.read_text())
    sources = document["sources"]
    assert set(document["asked"]) == set(refresh.SOURCES.values())
    assert {entry["source"] for entry in entries()} <= set(sources)
    for name, text in sources.items():
        assert name in refresh.SOURCES.values() or "not verified live" in text
    keys = [(entry["cloud"], entry["region"], entry["sku"]) for entry in entries()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("asked", [["memory"], ["aws-gpu-catalogue"], ["memory", "aws-gpu-catalogue"]])
def test_a_price_is_verified_if_its_provider_was_asked(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    document = tomllib.loads(table.TABLE.read_text()) | {"asked": asked}
    monkeypatch.setattr(table, "_read", lambda: document)
    for entry in entries():
        found = table.line(entry["cloud"], entry["region"], entry["sku"])
        assert found.verified == (entry["source"] in asked), entry
    assert not table.line("aws", "eu-west-1", "m7i.8xlarge/spot").verified, "of a share from another source"


def test_a_month_is_730_hours_and_many_cost_more_than_one() -> None:
    listed = {(entry["region"], entry["sku"]): entry for entry in entries() if entry["cloud"] == "aws"}
    disk = table.line("aws", "us-east-1", "gp3-gb-month", 3 * 250, what="disks")
    assert (disk.what, disk.count, disk.unit) == ("disks", 750, "GB")
    assert disk.usd_per_hour == pytest.approx(listed["us-east-1", "gp3-gb-month"]["usd_per_month"] * 750 / 730)
    node = table.line("aws", "us-east-1", "m7i.8xlarge", 3)
    assert (
        node.usd_per_hour == pytest.approx(3 * 16 * listed["us-east-1", "m7i.large"]["usd_per_hour"])
        and not node.estimate
    )
    assert table.total([disk, node]) == pytest.approx(disk.usd_per_hour + node.usd_per_hour)


def test_what_costs_the_same_everywhere_has_one_row() -> None:
    rows = [entry for entry in entries() if entry["sku"] == "route53-hosted-zone-month"]
    assert [row["region"] for row in rows] == [table.EVERYWHERE]
    for region in REGIONS["aws"]:
        zone = table.line("aws", region, "route53-hosted-zone-month")
        assert zone.unit == "zone" and zone.usd_per_hour * 730 == pytest.approx(rows[0]["usd_per_month"])


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


def test_what_a_region_has_no_row_for_is_a_guess_in_proportion_to_another_region() -> None:
    for sku, share in (("Standard_D32s_v6", 1.2), ("managed-disk-P15", 1.1)):
        known, guess = (table.line("azure", region, sku) for region in ("eastus", "westeurope"))
        assert guess.usd_per_hour == pytest.approx(share * known.usd_per_hour)
        assert guess.estimate and not known.estimate
