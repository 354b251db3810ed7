"""How the table of prices is refreshed from the providers' own lists."""

from __future__ import annotations

import functools
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import http_server
import pytest
from http_server import Answer, Asked
from price_lists import aws_offers, azure_answers

from infra.clouds.aws import lustre
from infra.clouds.aws import price_list as aws_list
from infra.clouds.azure import price_list as azure_list
from infra.errors import OperationError
from infra.prices import refresh, table

TODAY = "2027-02-03"
AWS_REGIONS = ("us-east-1", "us-west-2", "eu-west-1")


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
    added = [line for line in after if "{cloud" in line]
    kept = [line for line in after if line not in added]
    changed = [(old, new) for old, new in zip(before, kept, strict=True) if old != new]
    assert len(changed) + len(added) == done.found and len(added) == 6, "what was a guess has a price now"
    for old, new in changed:
        assert f'as_of = "{TODAY}", source = "a' in new and "estimate" not in new
        assert old.split(", usd_per_")[0] == new.split(", usd_per_")[0]
    values = {(e["cloud"], e["region"], e["sku"]): e for e in tomllib.loads(copy.read_text())["list"]["price"]}
    for region in AWS_REGIONS:
        assert values["aws", region, "m7i.large"]["usd_per_hour"] == 0.10625
        assert values["aws", region, "gp3-gb-month"]["usd_per_month"] == 0.09
        assert values["aws", region, "nat-gateway"]["usd_per_hour"] == 0.05
        assert values["aws", region, "public-ipv4"]["usd_per_hour"] == 0.006
        assert values["aws", region, "s3-gb-month"]["usd_per_month"] == 0.024
        assert values["aws", region, "cloudwatch-metric-month"]["usd_per_month"] == 0.31
        assert values["aws", region, "eks-cluster"]["usd_per_hour"] == 0.11
        assert values["aws", region, "kms-key-month"]["usd_per_month"] == 1.1
        assert values["aws", region, "ecr-gb-month"]["usd_per_month"] == 0.11
        assert values["aws", region, "cloudwatch-request"]["usd_per_hour"] == 0.00002
        assert values["aws", region, lustre.SKU]["usd_per_month"] == 0.146
    assert values["aws", "*", "route53-hosted-zone-month"]["usd_per_month"] == 0.55
    assert values["azure", "eastus", "Standard_D32s_v6"]["usd_per_hour"] == 1.7
    assert values["azure", "westeurope", "Standard_D32s_v6"]["usd_per_hour"] == 1.7
    assert "estimate" not in values["azure", "westeurope", "Standard_D32s_v6"]
    assert values["azure", "eastus", "Standard_D32s_v6/spot"]["usd_per_hour"] == 0.5
    assert values["azure", "eastus", "managed-disk-P15"]["usd_per_month"] == 40.0
    assert values["azure", "eastus", "blob-gb-month"]["usd_per_month"] == 0.02


def test_what_a_provider_does_not_say_clearly_is_left_and_told(providers: list[Asked], copy: Path) -> None:
    done = refresh.refresh(copy, ("aws",), today=TODAY)
    assert "ebs-snapshot-gb-month in eu-west-1: aws has 2 different prices for it" in done.unchanged
    assert "m6i.large in us-east-1: aws has no price for it" in done.unchanged
    assert done.asked == done.found + len(done.unchanged)
    old = next(line for line in table.TABLE.read_text().splitlines() if '"eu-west-1", sku = "ebs-snap' in line)
    assert old in copy.read_text()


def test_a_refresh_of_one_cloud_asks_only_that_one(providers: list[Asked], copy: Path) -> None:
    refresh.refresh(copy, ("azure",), today=TODAY)
    assert 'cloud = "aws"' in copy.read_text()
    assert [line for line in copy.read_text().splitlines() if '"aws"' in line] == [
        line for line in table.TABLE.read_text().splitlines() if '"aws"' in line
    ]


def cut_off(asked: Asked) -> Answer:
    complete = aws_offers(asked)
    return Answer(
        body=complete.body[: len(complete.body) // 2],
        headers={**complete.headers, "Content-Length": str(len(complete.body))},
    )


@pytest.mark.parametrize(
    "cloud, answer, reason",
    [
        ("aws", cut_off, r".+"),
        ("aws", lambda _: Answer(status=503), "HTTP Error 503"),
        ("aws", lambda _: Answer(body=b"<html>sorry</html>"), "its form has changed"),
        ("azure", lambda _: Answer(status=429), "HTTP Error 429"),
        ("azure", lambda _: Answer(body=b"<html>sorry</html>"), "does not have the documented form"),
        ("azure", lambda _: Answer(body=b"{}"), "does not have the documented form"),
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
    assert re.match(rf"cannot get the prices of {cloud} in \S+, the table is unchanged: ", line) and re.search(
        reason, line
    )
    assert len(line.splitlines()) == 1
    assert copy.read_text() == table.TABLE.read_text()


def test_no_network_is_one_line_too(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point(monkeypatch, aws="http://127.0.0.1:9", azure="http://127.0.0.1:9")
    with pytest.raises(OperationError, match="Connection refused"):
        refresh.refresh(copy, ("aws", "azure"), today=TODAY)
    assert copy.read_text() == table.TABLE.read_text()


def test_an_amount_is_written_without_digits_that_mean_nothing(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = {"m7i.large": 1.4000000000000001, "nat-gateway": 38.0, "gp3-gb-month": 0.0208}
    found = {sku: {amount} for sku, amount in amounts.items()}
    monkeypatch.setitem(refresh.CLOUDS, "aws", lambda _region, _skus: found)
    assert refresh.refresh(copy, ("aws",), today=TODAY).found == 3 * len(AWS_REGIONS)
    rows = [line for line in copy.read_text().splitlines() if TODAY in line]
    written = {sku: amount for row in rows for sku, amount in re.findall(r'sku = "(.*?)".* usd_per_\w+ = (\S+),', row)}
    assert written == {"m7i.large": "1.4", "nat-gateway": "38.0", "gp3-gb-month": "0.0208"}


def test_every_thing_of_aws_that_has_a_price_can_be_asked_for() -> None:
    skus = {row["sku"] for row in tomllib.loads(table.TABLE.read_text())["list"]["price"] if row["cloud"] == "aws"}
    offers = aws_list.USAGE | aws_list.GLOBAL
    known = {sku for usage in offers.values() for sku in usage.values()} | set(aws_list.LUSTRE)
    types = {sku for sku in skus if re.fullmatch(r"[a-z0-9]+\.[a-z0-9]+(/spot)?", sku)}
    assert skus - types <= known
