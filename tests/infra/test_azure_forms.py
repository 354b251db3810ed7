"""Every value that azure-xeon sends to Azure is one that Azure takes, by its published type files and documents."""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from azure_judge import RUN_COMMAND, SOURCES, TYPES, forms, refused, refused_request, versions
from azure_mocks import BAKED, OWN, SUBSCRIPTION, Azure
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_recorder import Ran, run
from sample_inputs import public_key

from infra.clouds.azure import listing, machine_types, untagged
from infra.clusters import azure_xeon
from infra.config import stack_file
from infra.config.keys import KEYS
from infra.config.settings import load
from infra.config.values import SettingsError
from infra.errors import UsageError
from infra.prices import table

LONGEST = "s-" + "0123456789" * 3
"""A stack's name of 32 characters."""
MOST = "the longest name, everything on"
"""The way that `make test` tries beside the stack file."""
WAYS: dict[str, dict[str, str]] = {
    "the stack file": {},
    "one node": {"nodes": "1"},
    "64 nodes": {"nodes": "64"},
    "spot": {"spot": "true"},
    "all public": {"publicNodes": "all"},
    "flow logs": {"flowLogs": "true"},
    "kept data": {"keepData": "true"},
    "replaced nodes": {"replaceNodes": "true"},
    "an image by its id": {"image": BAKED},
    "a zone, another region": {"zone": "3", "region": "westeurope"},
    "an older series": {"instanceType": "Standard_D32_v5", "diskGb": "4095"},
    MOST: {"nodes": "10", "flowLogs": "true", "keepData": "true", "spot": "true", "publicNodes": "all"},
    "a private admin": {"adminCidr": "10.9.0.0/16", "cidr": "172.16.0.0/16"},
    "two admins' addresses": {"adminCidr": "198.51.100.6/31"},
    "the longest owner and address": {"owner": "o" * 63, "alertEmail": "a" * 60 + "@example.org"},
}


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id.pub"
    path.write_text(public_key("ssh-ed25519"))
    return path


def program(key: Path, keys: Mapping[str, str], stack: str = "xeon") -> Ran:
    return run({**stack_file.read("azure-xeon"), **OWN, "publicKey": str(key), **keys}, Azure(), stack=stack)


def wrong(ran: Ran) -> list[str]:
    """What Azure would refuse of all that was declared."""
    own = [found for found in ran.declared.values() if found.type.startswith("azure-native:")]
    assert own
    return [f"{found.name}: {line}" for found in own for line in refused(found.type, found.inputs)]


@pytest.mark.parametrize(
    "way", [way if way in ("the stack file", MOST) else pytest.param(way, marks=pytest.mark.acceptance) for way in WAYS]
)
def test_azure_takes_every_value(key: Path, way: str) -> None:
    assert wrong(program(key, WAYS[way], LONGEST if "longest name" in way else "xeon")) == []


STACKS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
CIDRS = st.tuples(st.integers(10 << 24, (11 << 24) - 1), st.integers(16, 28)).map(
    lambda parts: str(ipaddress.ip_network(parts, strict=False))
)
CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "nodes": st.integers(1, 5),
    "cidr": CIDRS,
    "region": st.sampled_from(("eastus", "westus3", "westeurope")),
    "zone": st.sampled_from(("", "1", "2", "3")),
    "instanceType": st.sampled_from(sorted(machine_types.SIZES)),
    "spot": st.booleans(),
    "diskGb": st.integers(machine_types.BUILDER_DISK_GB, machine_types.MOST_DISK_GB),
    "publicNodes": st.sampled_from(("head", "all")),
    "image": st.sampled_from(("bake", BAKED)),
    "owner": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.@_-]{0,62}", fullmatch=True),
    "budgetUsd": st.integers(1, 10_000_000),
    "alertEmail": st.from_regex(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,10}(\.[A-Za-z0-9-]{1,4}){1,2}", fullmatch=True),
    "maxHours": st.integers(1, 24 * 31),
    "idleMinutes": st.integers(0, 24 * 60),
    "adminCidr": st.sampled_from(("203.0.113.7/32", "198.51.100.0/24", "198.51.100.6/31")),
    "baseImage": st.sampled_from(("", "Canonical:ubuntu-24_04-lts:server:1.2", "debian:debian-12:12:0.1.2")),
    "monitoring": st.booleans(),
    "keepData": st.booleans(),
    "flowLogs": st.booleans(),
    "replaceNodes": st.booleans(),
}
# As the stack file has them, or empty.
FIXED = {"cluster", "profile", "collectives", "publicKey", "cpus", "memoryMb", "scheduler", "capacityReservation"}


def test_every_key_is_among_the_generated_settings() -> None:
    assert {*CHOICES, *FIXED} == set(KEYS)


@pytest.mark.acceptance
@given(stack=STACKS, keys=st.fixed_dictionaries(CHOICES))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_azure_takes_whatever_valid_settings_make(key: Path, stack: str, keys: dict[str, Any]) -> None:
    """Settings that the program refuses, as 22 nodes in a /27, say so before anything is sent."""
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in keys.items()}
    try:
        azure_xeon.check(load(stack, {**stack_file.read("azure-xeon"), **OWN, "publicKey": str(key), **text}))
    except UsageError:
        return
    assert wrong(program(key, text, stack)) == []


@pytest.mark.parametrize("stack", ["windows-lab", "my-microsoft", "wind-ows"])
def test_words_that_azure_refuses_in_names_are_refused_here(key: Path, stack: str) -> None:
    """The storage account has a name in the public DNS, with the start of the stack's in it."""
    raw = {**stack_file.read("azure-xeon"), **OWN, "publicKey": str(key)}
    with pytest.raises(SettingsError, match=r"stack = .*must be without microsoft and windows: Azure refuses them"):
        azure_xeon.check(load(stack, raw))


# --- the judge itself ---


def of_type(ran: Ran, kind: str) -> dict[str, Any]:
    return copy.deepcopy(next(found.inputs for found in ran.declared.values() if found.type.endswith(f":{kind}")))


def planted(inputs: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The inputs with another value; None takes it out."""
    *parents, last = path.split(".")
    place: Any = inputs
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return inputs


PLANTS: list[tuple[str, str, Any]] = [
    ("NetworkSecurityGroup", "securityRules.0.description", "x" * 141),
    ("NetworkSecurityGroup", "securityRules.0.name", "ssh from admin"),
    ("NetworkSecurityGroup", "securityRules.0.priority", 99),
    ("NetworkSecurityGroup", "securityRules.0.access", None),
    ("NetworkSecurityGroup", "securityRules.0.protocol", "TCP"),
    ("StorageAccount", "accountName", "ty-data"),
    ("StorageAccount", "accountName", "tywindowslab01"),
    ("StorageAccount", "accountName", "t" * 25),
    ("StorageAccount", "networkRuleSet.ipRules.0.iPAddressOrRange", "203.0.113.7/32"),
    ("StorageAccount", "networkRuleSet.ipRules.0.iPAddressOrRange", "10.0.0.1"),
    ("StorageAccount", "sku.name", "Standard_XRS"),
    ("StorageAccount", "kind", None),
    ("Gallery", "galleryName", "trainyard-xeon"),
    ("GalleryImageVersion", "galleryImageVersionName", "1.0"),
    ("VirtualMachine", "osProfile.computerName", "n" * 65),
    ("VirtualMachine", "osProfile.adminUsername", "admin"),
    ("VirtualMachine", "osProfile.customData", "not base64!"),
    ("VirtualMachine", "priority", "spot"),
    ("VirtualMachine", "storageProfile.osDisk.createOption", None),
    ("VirtualMachine", "storageProfile.osDisk.diskSizeGB", "256"),
    ("VirtualMachine", "hardwareProfile.vmSizes", "Standard_D32s_v6"),
    ("Budget", "timePeriod.startDate", "2026-11-02T00:00:00Z"),
    ("Budget", "budgetName", "b" * 64),
    ("Budget", "notifications.spent.operator", "Above"),
    ("Budget", "notifications.spent.contactEmails", ["me"]),
    ("RoleDefinition", "roleDefinitionId", "role"),
    ("RoleDefinition", "permissions.0.actions", ["Microsoft.Compute"]),
    ("UserAssignedIdentity", "resourceName", "id"),
    ("BlobServiceProperties", "deleteRetentionPolicy.days", 366),
    ("BlobContainer", "containerName", "a--b"),
    ("ManagementPolicy", "policy.rules.0.type", None),
    ("ResourceGroup", "location", "East US"),
    ("ResourceGroup", "tags", {"cost/centre": "1"}),
    ("ResourceGroup", "tags", {"Microsoft-owner": "me"}),
    ("ResourceGroup", "tags", {"owner": "x" * 257}),
    ("ResourceGroup", "tags", {str(number): "x" for number in range(51)}),
]


@pytest.fixture(scope="module")
def ran(key: Path) -> Ran:
    return program(key, {})


@pytest.mark.parametrize("kind, path, value", PLANTS, ids=[f"{kind}.{path}" for kind, path, _ in PLANTS])
def test_what_azure_refuses_is_found(ran: Ran, kind: str, path: str, value: Any) -> None:
    token = next(found.type for found in ran.declared.values() if found.type.endswith(f":{kind}"))
    (line,) = refused(token, planted(of_type(ran, kind), path, value))
    assert path.partition(".")[0] in line


def test_a_run_command_is_judged_as_well() -> None:
    path = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/vm/runCommands/"
    query = {"api-version": ["2024-11-01"]}
    good = {"source": {"script": "true"}, "timeoutInSeconds": 60, "asyncExecution": True}

    def body(**more: object) -> dict[str, Any]:
        return {"location": "eastus", "properties": {**good, **more}}

    assert refused_request("PUT", path + "gate-1", query, body()) == []
    assert refused_request("PUT", path + "gate 1", query, body())
    assert refused_request("PUT", path + "gate-1", query, body(timeoutInSeconds="60"))
    assert refused_request("PUT", path + "gate-1", query, body(timeout=60))
    assert refused_request("PUT", path + "gate-1", query, {"location": "eastus", **good})
    assert refused_request("PUT", path + "gate-1", {"api-version": ["2024-11-31"]}, body())


def test_the_audit_asks_in_versions_that_exist() -> None:
    known = versions()
    for kind in listing.KINDS:
        assert kind.version in known[kind.type], kind
    own = {
        untagged.ASSIGNMENT: "microsoft.authorization/roleassignments",
        untagged.ROLE: "microsoft.authorization/roledefinitions",
        untagged.BUDGET: "microsoft.consumption/budgets",
    }
    for name, kind_of in own.items():
        assert untagged.VERSIONS[name] in known[kind_of], name


def test_every_row_says_where_it_is_from_and_is_used(ran: Ran) -> None:
    assert set(forms()) == {*TYPES.values(), RUN_COMMAND}
    for kind, rows in forms().items():
        for row in rows.values():
            assert set(row.source.split(", ")) <= set(SOURCES), f"{kind} {row.path}"


def test_prices_are_there_for_the_regions_that_are_tried() -> None:
    for region in ("eastus", "westus3", "westeurope"):
        assert table.line("azure", region, "nat-gateway", 1).usd_per_hour > 0
