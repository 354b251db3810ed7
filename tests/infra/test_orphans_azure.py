"""What a stack leaves on Azure: found by tag and by group, page by page; removed in order, waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import azure_subscription
import pytest
from azure_subscription import SUBSCRIPTION, Cloud, Who

from infra.clouds.azure import access, orphans
from infra.clouds.azure.arm import Arm, ArmError
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.errors import OperationError

GROUP = "resourceGroups/trainyard-yard"
COMPUTE, NETWORK = f"{GROUP}/providers/Microsoft.Compute", f"{GROUP}/providers/Microsoft.Network"
ACCOUNT = f"{GROUP}/providers/Microsoft.Storage/storageAccounts/tyyard"


@pytest.fixture
def settings(good: dict[str, str]) -> Settings:
    mine = {"adminCidr": "203.0.113.7/32", "owner": "ada", "alertEmail": "ada@example.org"}
    return replace(
        load("azure-xeon", {**stack_file.read("azure-xeon"), **mine, "publicKey": good["publicKey"]}), stack="yard"
    )


@pytest.fixture
def place() -> Iterator[tuple[Arm, Cloud]]:
    with azure_subscription.azure() as (endpoint, cloud):
        arm = Arm(SUBSCRIPTION, endpoint=endpoint, who=Who(), wait=0)
        fill(cloud, endpoint)
        yield arm, cloud


def fill(cloud: Cloud, endpoint: str) -> None:
    """A stack's worth of things, a disk without a tag, and another stack's machine and group."""
    cloud.add(GROUP, "yard")
    for name, state in (("node1", "running"), ("node2", "stopped"), ("builder", "deallocated")):
        machine = cloud.add(f"{COMPUTE}/virtualMachines/{name}", "yard")
        cloud.things[machine.lower()]["properties"] = {
            "hardwareProfile": {"vmSize": "Standard_D32s_v6"},
            "instanceView": {"statuses": [{"code": "ProvisioningState/succeeded"}, {"code": f"PowerState/{state}"}]},
        }
        cloud.add(f"{COMPUTE}/virtualMachines/{name}/runCommands/ready", "yard")
        cloud.add(
            f"{COMPUTE}/disks/{name}-os",
            managedBy=machine,
            sku={"name": "Premium_LRS"},
            properties={"diskSizeGB": 256},
        )
        cloud.add(f"{NETWORK}/networkInterfaces/{name}", "yard")
    cloud.add(f"{COMPUTE}/galleries/yard/images/gold/versions/1.0.0", "yard", properties={})
    cloud.add(f"{COMPUTE}/galleries/yard/images/gold", "yard")
    cloud.add(f"{COMPUTE}/galleries/yard", "yard")
    cloud.add(f"{COMPUTE}/snapshots/gold", "yard", properties={"diskSizeGB": 64})
    for kind in ("natGateways", "publicIPAddresses", "virtualNetworks", "networkSecurityGroups"):
        cloud.add(f"{NETWORK}/{kind}/yard", "yard")
    account = cloud.add(ACCOUNT, "yard", properties={"primaryEndpoints": {"blob": f"{endpoint}/blob/"}})
    cloud.lists[f"{account}/blobServices/default/containers"] = [{"name": "data"}]
    cloud.add(
        "resourceGroups/NetworkWatcherRG/providers/Microsoft.Network/networkWatchers/NetworkWatcher_eastus/flowLogs/yard",
        "yard",
    )
    add_untagged(cloud)
    cloud.add("resourceGroups/trainyard-yard-2", "yard-2")
    cloud.add("resourceGroups/trainyard-yard-2/providers/Microsoft.Compute/disks/other", "yard-2")


def add_untagged(cloud: Cloud) -> None:
    """The role of its own, the three rights that the program gives, and the budget."""
    role = cloud.add(
        f"providers/Microsoft.Authorization/roleDefinitions/{access.role_guid(SUBSCRIPTION, 'yard')}",
        properties={"roleName": "trainyard-yard-role"},
    )
    assign(cloud, "may-end", GROUP, role)
    assign(cloud, "may-store", f"{ACCOUNT}/blobServices/default/containers/data", "/roleDefinitions/of-azures")
    assign(cloud, "may-read", ACCOUNT, "/roleDefinitions/of-azures")
    cloud.add(f"{GROUP}/providers/Microsoft.Consumption/budgets/trainyard-yard-budget", properties={"amount": 100})


def assign(cloud: Cloud, logical: str, scope: str, role: str) -> str:
    """A right on a part of the subscription; Azure tells scopes in capitals of its own."""
    scope = f"{azure_subscription.ROOT}/{scope}" if scope else azure_subscription.ROOT
    called = access.assignment_guid(logical, scope, "somebody")
    return cloud.add(
        f"{scope}/providers/Microsoft.Authorization/roleAssignments/{called}".removeprefix(
            f"{azure_subscription.ROOT}/"
        ),
        properties={"scope": scope.upper(), "principalId": "somebody", "roleDefinitionId": role},
    )


def test_what_has_no_tag_is_found_by_its_name(place: tuple[Arm, Cloud], settings: Settings) -> None:
    """Others' rights are not: on the subscription, on another group, on ours by somebody's own hand."""
    arm, cloud = place
    assign(cloud, "may-read", "", "/roleDefinitions/of-azures")
    assign(cloud, "may-end", "resourceGroups/trainyard-yard-2", "/roleDefinitions/of-azures")
    assign(cloud, "by-hand", GROUP, "/roleDefinitions/of-azures")
    untagged = ("role assignment", "role definition", "budget")
    found = {(resource.kind, resource.what) for resource in orphans.find(settings, arm) if resource.kind in untagged}
    rights = {("role assignment", what) for what in ("may-end", "may-store", "may-read")}
    assert found == {*rights, ("role definition", "trainyard-yard-role"), ("budget", "trainyard-yard-budget")}


def test_a_role_that_has_outlived_its_group_is_swept(place: tuple[Arm, Cloud], settings: Settings) -> None:
    """Its name is the next one's, and Azure would refuse that one."""
    arm, cloud = place
    cloud.delete(f"{azure_subscription.ROOT}/{GROUP}".lower())
    orphans.sweep(settings, [], arm=arm)
    assert not [name for name in cloud.things if "roledefinitions" in name]
    assert orphans.find(settings, arm) == []


def test_a_role_is_known_by_the_groups_name_for_it(place: tuple[Arm, Cloud], settings: Settings) -> None:
    """Pulumi's state has it under the scope that it was declared for, Azure under the subscription."""
    arm, _cloud = place
    called = access.role_guid(SUBSCRIPTION, "yard")
    known = f"{azure_subscription.ROOT}/{GROUP}/providers/Microsoft.Authorization/roleDefinitions/{called}"
    swept = orphans.sweep(settings, [known], arm=arm)
    assert "role definition" not in {resource.kind for resource in swept}


def test_rights_that_may_not_be_listed_are_told(place: tuple[Arm, Cloud], settings: Settings) -> None:
    arm, cloud = place
    cloud.forbids.add("roleassignments")
    (unseen,) = [resource for resource in orphans.find(settings, arm) if resource.unseen]
    assert unseen.kind == "role assignment" and "403 AuthorizationFailed" in unseen.what


def test_everything_of_the_stack_is_found_over_all_pages(place: tuple[Arm, Cloud], settings: Settings) -> None:
    arm, cloud = place
    found = orphans.find(settings, arm)
    expected = {name for name in cloud.things if "yard-2" not in name and "runcommands" not in name}
    assert {resource.id or resource.owner for resource in found} == expected
    assert [resource.kind for resource in found][-1] == "resource group"
    assert not any(resource.holds for resource in found)


def test_what_it_costs_is_by_what_azure_bills(
    place: tuple[Arm, Cloud], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, _ = place
    known = {"Standard_D32s_v6": 1.5}
    monkeypatch.setattr("infra.clouds.azure.listing._price", lambda _item, sku, count=1: known.get(sku))
    prices = {
        resource.what: resource.usd_per_hour for resource in orphans.find(settings, arm) if resource.kind == "machine"
    }
    # Shut down from inside it is `stopped`, and still billed; only a deallocated one is not.
    assert prices == {
        "node1 Standard_D32s_v6 running": 1.5,
        "node2 Standard_D32s_v6 stopped": 1.5,
        "builder Standard_D32s_v6 deallocated": 0.0,
    }


def test_a_busy_azure_is_asked_again(place: tuple[Arm, Cloud], settings: Settings) -> None:
    arm, cloud = place
    calm = orphans.find(settings, arm)
    cloud.busy = 3
    assert orphans.find(settings, arm) == calm and cloud.busy == 0


def test_a_sweep_leaves_what_the_state_knows(place: tuple[Arm, Cloud], settings: Settings) -> None:
    """By id, in whatever capitals; a disk is known with its machine; the group stays, as it is not empty."""
    arm, cloud = place
    declared = {name: resource for name, resource in cloud.things.items() if "disks" not in name}
    known = {resource["id"].upper() for name, resource in declared.items() if "node2" not in name}
    swept = orphans.sweep(settings, known, arm=arm)
    assert sorted(resource.what.split()[0] for resource in swept) == ["node2", "node2", "node2-os"]
    assert not [name for name in cloud.things if "node2" in name.rpartition("/")[2]]
    assert f"{azure_subscription.ROOT}/{COMPUTE}/disks/node1-os".lower() in cloud.things


def test_a_sweep_removes_all_of_a_stack_and_nothing_of_another(place: tuple[Arm, Cloud], settings: Settings) -> None:
    arm, cloud = place
    orphans.sweep(settings, [], arm=arm)
    assert orphans.find(settings, arm) == []
    assert len([name for name in cloud.things if "yard-2" in name]) == 2 == len(cloud.things)
    gone = [line.rpartition("/providers/")[2] for line in cloud.asked if line.startswith("DELETE")]
    order = [
        "flowlogs/",
        "machines/node1",
        "interfaces/node1",
        "galleries/yard/images/gold/versions",
        "virtualnetworks",
        "natgat",
    ]
    order += ["storageaccounts/", "roledefinitions/"]
    places = [next(index for index, line in enumerate(gone) if part in line) for part in order]
    assert places == sorted(places)
    assert orphans.sweep(settings, [], arm=arm) == []


def test_data_goes_only_when_asked_for(place: tuple[Arm, Cloud], settings: Settings) -> None:
    arm, cloud = place
    cloud.blobs = {f"train-{index}.bin": 1_000_000_000 for index in range(5)}
    orphans.sweep(settings, [], arm=arm)
    account, *rights, group = orphans.find(settings, arm)
    assert (account.kind, account.holds) == (
        "storage account",
        "5 blobs (5 GB, with older versions and deleted ones)",
    )
    assert {right.what for right in rights} == {"may-store", "may-read"}, "whoever keeps data may read it"
    assert group.kind == "resource group"
    orphans.sweep(settings, [], delete_data=True, arm=arm)
    assert orphans.find(settings, arm) == []


def test_what_was_deleted_and_can_be_had_back_still_costs(place: tuple[Arm, Cloud], settings: Settings) -> None:
    arm, cloud = place
    cloud.deleted = {"step-100.pt": 1_500_000_000}
    (account,) = [resource for resource in orphans.find(settings, arm) if resource.kind == "storage account"]
    assert account.holds == "1 blobs (1.5 GB, with older versions and deleted ones)"
    assert account.usd_per_hour
    orphans.sweep(settings, [], delete_data=True, arm=arm)  # it goes with its account
    assert orphans.find(settings, arm) == []


def test_another_stacks_machine_in_our_group_is_seen_and_left(place: tuple[Arm, Cloud], settings: Settings) -> None:
    arm, cloud = place
    cloud.add(f"{COMPUTE}/disks/theirs", "yard-2", sku={"name": "Premium_LRS"}, properties={"diskSizeGB": 32})
    orphans.sweep(settings, [], arm=arm)
    assert [resource.what.split()[0] for resource in orphans.find(settings, arm)] == ["theirs", "trainyard-yard"]


def test_a_deletion_that_fails_later_is_told_and_keeps_nothing_else(
    place: tuple[Arm, Cloud], settings: Settings
) -> None:
    arm, cloud = place
    cloud.refuses.add(f"{azure_subscription.ROOT}/{NETWORK}/virtualNetworks/yard".lower())
    with pytest.raises(OperationError, match=r"network yard: DELETE .*: Failed: InUseSubnetCannotBeDeleted: in use"):
        orphans.sweep(settings, [], arm=arm)
    assert [resource.kind for resource in orphans.find(settings, arm)] == ["network", "resource group"]


def test_a_deletion_that_never_ends_is_given_up(place: tuple[Arm, Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    arm, cloud = place
    monkeypatch.setattr("infra.clouds.azure.arm.DELETING_S", 0.2)
    monkeypatch.setattr(cloud, "operations", Endless())
    with pytest.raises(ArmError, match=r"^DELETE .*natGateways/yard: not done within 0 s$"):
        arm.delete(f"{azure_subscription.ROOT}/{NETWORK}/natGateways/yard", "2024-05-01")


class Endless(dict[str, tuple[str, int]]):
    """Deletions that are looked at again and again."""

    def __getitem__(self, name: str) -> tuple[str, int]:
        return super().__getitem__(name)[0], 9


def test_contents_that_cannot_be_read_count_as_data(place: tuple[Arm, Cloud], settings: Settings) -> None:
    arm, cloud = place
    del cloud.lists[f"{azure_subscription.ROOT}/{ACCOUNT}/blobServices/default/containers"]
    (account,) = [resource for resource in orphans.find(settings, arm) if resource.kind == "storage account"]
    assert account.holds == "contents that cannot be read" and account.usd_per_hour is None
