"""Fixtures: the program of azure-xeon, run under the recorder with the keys that a test asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure_mocks import OWN, Azure, Program
from program_recorder import Ran
from recorded_runs import RecordedRuns

from infra.clouds.azure import machine_types
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.prices import table


class Prices(dict[tuple[str, str, str], dict[str, Any]]):
    """Every price of one region: powers of two, so that a sum says what is in it."""

    def __init__(self, region: str = "eastus") -> None:
        disks = [f"managed-disk-{letter}{number}" for letter in "PE" for number in (6, 10, 15, 20, 30, 40, 50)]
        sizes = [name + end for name in machine_types.SIZES for end in ("", "/spot")]
        rest = ["public-ip-standard", "nat-gateway", "snapshot-gb-month", "gallery-version-gb-month", "blob-gb-month"]
        for power, sku in enumerate((*rest, *sizes, *disks)):
            price = {"usd_per_hour": 2.0**power / 2**16, "unit": "x"}
            self["azure", region, sku] = {**price, "as_of": "2026-11-21", "source": "azure-retail"}


@pytest.fixture
def raw(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The stack file as it is, and what its user adds."""
    monkeypatch.setattr(table, "_table", Prices)
    return {**stack_file.read("azure-xeon"), "publicKey": str(key_file), **OWN}


_RUNS = RecordedRuns()


@pytest.fixture
def program(raw: dict[str, str]) -> Program:
    """Run the program with these keys."""

    def of_azure(*, stack: str = "xeon", preview: bool = False, shared: bool = True, **keys: object) -> Ran:
        own = {**raw, **{key: str(value) for key, value in keys.items()}}
        return _RUNS.run(own, Azure(), stack=stack, preview=preview, shared=shared)

    return of_azure


@pytest.fixture
def settings(raw: dict[str, str]) -> Callable[..., Settings]:
    return lambda **keys: load("xeon", {**raw, **{key: str(value) for key, value in keys.items()}})
