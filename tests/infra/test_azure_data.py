"""Storage, identities, flow logs and budget on Azure."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from azure_mocks import GROUP, Azure, Program, named, nodes, only, principal
from program_recorder import run

from infra.clouds.azure import access, data
from infra.config.settings import ROOT, Settings

pytest_plugins = ["azure_program"]


def test_the_storage_has_no_way_in_but_an_identity(program: Program) -> None:
    account = only(program(), "StorageAccount")
    assert account["allowBlobPublicAccess"] is account["allowSharedKeyAccess"] is False
    assert account["minimumTlsVersion"] == "TLS1_2" and account["enableHttpsTrafficOnly"] is True
    rules = account["networkRuleSet"]
    assert rules["defaultAction"] == "Deny" and [rule["iPAddressOrRange"] for rule in rules["ipRules"]] == [
        "203.0.113.7"
    ]
    assert only(program(), "BlobContainer")["publicAccess"] == "None"


@pytest.mark.parametrize(
    "admin, rules",
    [
        ("203.0.113.7/32", ["203.0.113.7"]),
        ("198.51.100.6/31", ["198.51.100.6", "198.51.100.7"]),
        ("8.8.8.0/24", ["8.8.8.0/24"]),
        ("10.9.0.0/16", []),
    ],
)
def test_the_admins_network_as_a_storage_account_takes_it(
    settings: Callable[..., Settings], admin: str, rules: list[str]
) -> None:
    assert data.ip_rules(settings(adminCidr=admin).cloud.admin_cidr) == rules


def test_the_identity_may_end_machines_and_keep_blobs_and_no_more(program: Program) -> None:
    ran = program()
    role = only(ran, "RoleDefinition")
    assert role["permissions"] == [
        {"actions": ["Microsoft.Compute/virtualMachines/read", "Microsoft.Compute/virtualMachines/deallocate/action"]}
    ]
    assert role["scope"] == GROUP and role["assignableScopes"] == [GROUP]
    scopes = {found.name: found.inputs["scope"] for found in ran.of(":RoleAssignment")}
    assert scopes["may-end"] == GROUP and scopes["may-store"].endswith("/container")
    assert {ran[name].inputs["principalId"] for name in ("may-end", "may-store")} == {principal("identity")}
    for machine in (*nodes(ran), named(ran, "builder")):
        assert ran[machine].inputs["identity"]["type"] == "UserAssigned"


@pytest.mark.parametrize("client, kind", [("", "User"), ("11111111-aaaa-bbbb-cccc-222222222222", "ServicePrincipal")])
def test_whoever_runs_it_may_list_what_the_container_holds(
    raw: dict[str, str], client: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Owner may not, and keys are off: the audit could not tell an empty container from a full one."""
    answer = Azure.invoked
    signed_in = {"clientId": client} if client else {}
    monkeypatch.setattr(Azure, "invoked", lambda self, args: {**answer(self, args), **signed_in})
    made = run(raw, Azure(), stack="xeon")["may-read"].inputs
    assert (made["principalId"], made["principalType"]) == (principal("operator"), kind)
    assert made["scope"].endswith("/StorageAccount/data"), "the flow logs' container as well"
    assert made["roleDefinitionId"].endswith("/2a2b9908-6ea1-4ae2-8e65-a410df84e7d1")  # Storage Blob Data Reader


def test_the_budget_is_of_the_group_and_its_month_is_not_the_programs_clock(program: Program) -> None:
    ran = program(budgetUsd=250)
    made = only(ran, "Budget")
    assert (made["scope"], made["amount"], made["timeGrain"]) == (GROUP, 250, "Monthly")
    assert ran["budget"].property_needs["timePeriod"] >= {"month"}
    assert {tuple(alarm["contactEmails"]) for alarm in made["notifications"].values()} == {("me@example.org",)}
    for path in (ROOT / "infra/clouds/azure").glob("*.py"):
        clock = [line for line in path.read_text().splitlines() if re.search(r"\b(now|today|utcnow)\(", line)]
        assert len(clock) == (path.name == "budget.py"), "only the provider of the month looks at the calendar"


DATA = {"group", "data", "container", "blobs", "tidy", "may-read"}


@pytest.mark.parametrize("keep, kept", [("true", DATA), ("false", set())])
def test_data_outlives_the_cluster_only_when_asked(program: Program, keep: str, kept: set[str]) -> None:
    ran = program(keepData=keep)
    assert {name for name, found in ran.declared.items() if found.retain_on_delete} == kept


def test_data_that_is_kept_keeps_no_network(program: Program) -> None:
    """`--exclude` keeps what the account depends on, and a NAT gateway costs; the subnet comes first nevertheless."""
    ran = program()
    for kept in DATA:
        assert ran.closure(kept) <= {"group", "azure", "data", "blobs"}, ran.closure(kept)
    (rule,) = only(ran, "StorageAccount")["networkRuleSet"]["virtualNetworkRules"]
    assert rule["virtualNetworkResourceId"] == f"{GROUP}/providers/Subnet/subnet", "waited for"


def test_a_preview_knows_the_subnet_that_is_not_there_yet(raw: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Azure.outputs
    unmade = {"id": ""}
    monkeypatch.setattr(
        Azure, "outputs", lambda self, args: {**answer(self, args), **(unmade if args.name == "subnet" else {})}
    )
    ran = run(raw, Azure(), stack="xeon", preview=True)
    (rule,) = only(ran, "StorageAccount")["networkRuleSet"]["virtualNetworkRules"]
    own = "Microsoft.Network/virtualNetworks/trainyard-xeon-network/subnets/trainyard-xeon-subnet"
    assert rule["virtualNetworkResourceId"] == f"{GROUP}/providers/{own}"


def test_flow_logs_by_config(program: Program) -> None:
    assert program().of(":FlowLog") == []
    made = only(program(flowLogs="true"), "FlowLog")
    assert made["targetResourceId"].endswith("/network") and made["networkWatcherName"] == "NetworkWatcher_eastus"


def test_flow_logs_come_with_an_identity_that_may_do_nothing_else(program: Program) -> None:
    """The account takes no keys, so logs without an identity would never be written."""
    ran = program(flowLogs="true")
    assert only(ran, "StorageAccount")["allowSharedKeyAccess"] is False
    log = ran["flow-logs"]
    assert log.inputs["identity"] == {
        "type": "UserAssigned",
        "userAssignedIdentities": [f"{GROUP}/providers/UserAssignedIdentity/flow-logs-identity"],
    }
    assert "may-log" in log.needs, "the right is there before the first log"
    right = ran["may-log"].inputs
    assert right["principalId"] == principal("flow-logs-identity") and right["scope"].endswith("/StorageAccount/data")
    assert right["roleDefinitionId"].endswith(f"/{access.BLOB_CONTRIBUTOR}")
    others = [found.inputs for found in ran.of(":RoleAssignment") if found.name != "may-log"]
    assert all(other["principalId"] != principal("flow-logs-identity") for other in others)
    machines = [found.inputs["identity"]["userAssignedIdentities"] for found in ran.of(":VirtualMachine")]
    assert machines and all("flow-logs" not in str(identities) for identities in machines)


def test_one_lifecycle_policy_removes_old_flow_logs(program: Program) -> None:
    """A retention in the flow log would make Network Watcher write a policy over the account's."""
    ran = program(flowLogs="true")
    assert only(ran, "FlowLog")["retentionPolicy"] == {"days": 0, "enabled": False}
    rules = {rule["name"]: rule["definition"] for rule in only(ran, "ManagementPolicy")["policy"]["rules"]}
    assert set(rules) == {"old-versions", "old-flow-logs"}
    assert rules["old-flow-logs"]["filters"]["prefixMatch"] == ["insights-logs-flowlogflowevent/"]
    assert rules["old-flow-logs"]["actions"] == {"baseBlob": {"delete": {"daysAfterModificationGreaterThan": 30}}}
    (own,) = only(program(), "ManagementPolicy")["policy"]["rules"]
    assert own["name"] == "old-versions"


def test_what_a_node_deletes_can_be_had_back_for_a_week_and_not_for_ever(program: Program) -> None:
    ran = program()
    service = only(ran, "BlobServiceProperties")
    week = {"days": 7, "enabled": True}
    assert service["isVersioningEnabled"] is True
    assert service["deleteRetentionPolicy"] == service["containerDeleteRetentionPolicy"] == week
    (rule,) = only(ran, "ManagementPolicy")["policy"]["rules"]
    assert rule["enabled"] is True
    assert rule["definition"] == {
        "actions": {"version": {"delete": {"daysAfterCreationGreaterThan": 1}}},
        "filters": {"blobTypes": ["blockBlob"]},
    }


def test_a_machine_is_made_after_its_right_to_end_itself(program: Program) -> None:
    """One that is there before, and whose `up` dies, could ask nobody to deallocate it, and would be billed on."""
    ran = program()
    for machine in (*nodes(ran), named(ran, "builder")):
        assert "may-end" in ran[machine].needs, machine
