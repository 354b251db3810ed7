"""The account's pre-flight on Azure, against a stand-in: each failure with its repair."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import azure_subscription
import pytest
from account_checks import Make, finding, states
from azure_subscription import ROOT, SUBSCRIPTION, Cloud, Who

from infra.clouds import account
from infra.clouds.azure import account as azure
from infra.clouds.azure import image
from infra.clouds.azure.arm import Arm
from infra.clouds.azure.image import DEFAULT_BASE
from infra.clouds.naming import ID_TAG, OWNER_TAG, STACK_TAG
from infra.errors import UsageError

pytest_plugins = ["account_fixtures"]


COMPUTE = f"{ROOT}/providers/Microsoft.Compute"


@pytest.fixture
def place() -> Iterator[tuple[Arm, Cloud]]:
    with azure_subscription.azure() as (endpoint, cloud):
        fit(cloud)
        yield Arm(SUBSCRIPTION, endpoint=endpoint, who=Who(), wait=0), cloud


def fit(cloud: Cloud) -> None:
    """A subscription in which the default stack can be made."""
    cloud.things[ROOT] = {"type": "subscription", "displayName": "lab", "state": "Enabled"}
    for name in azure.NAMESPACES:
        cloud.things[f"{ROOT}/providers/{name}".lower()] = {"type": "provider", "registrationState": "Registered"}
    cloud.lists[f"{ROOT}/locations"] = [{"name": name} for name in ("westus", "eastus2", "eastus", "northeurope")]
    cloud.lists[f"{COMPUTE}/skus"] = [*(sku(f"Standard_D{n}s_v6") for n in (2, 4, 8, 16)), sku("Standard_D32s_v6")]
    cloud.lists[f"{COMPUTE}/locations/eastus/usages"] = [
        usage("cores", 4, 350),
        usage("lowPriorityCores", 0, 3),
        usage("standardDSv6Family", 4, 104),
    ]
    publisher, offer, name, version = DEFAULT_BASE.split(":")
    images = f"{COMPUTE}/locations/eastus/publishers/{publisher}/artifacttypes/vmimage/offers/{offer}/skus/{name}"
    cloud.lists[f"{images}/versions"] = [{"name": version}]
    cloud.lists[f"{ROOT}/providers/Microsoft.Authorization/permissions"] = [{"actions": ["*"], "notActions": []}]


def sku(name: str, **more: Any) -> dict[str, Any]:
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "family": "standardDSv6Family",
        "locations": ["eastus"],
        "locationInfo": [{"location": "eastus", "zones": ["1", "2", "3"]}],
        "capabilities": [{"name": "vCPUs", "value": "".join(filter(str.isdigit, name.partition("_v")[0]))}],
        "restrictions": [],
        **more,
    }


def usage(name: str, used: int, limit: int) -> dict[str, Any]:
    return {"name": {"value": name, "localizedValue": name}, "currentValue": used, "limit": limit}


def test_a_subscription_that_is_fit(make: Make, place: tuple[Arm, Cloud]) -> None:
    found = azure.check(make("azure-xeon"), place[0])
    assert states(found) == dict.fromkeys(("sign-in", "providers", "region", "type", "quota", "image", "rights"), "ok")
    detail = "3 nodes and the builder need 100 of standardDSv6Family (4 of 104 used), 100 of cores (4 of 350 used)"
    assert finding(found, "quota").detail == detail


@pytest.mark.parametrize(
    "check, changes, detail, mend",
    [
        ("region", {"region": "moonbase"}, "no region moonbase", "config set region eastus"),
        ("type", {"zone": "4"}, "zone 4 of eastus does not offer", "config set zone 1"),
        (
            "quota",
            {"nodes": "4"},
            "4 nodes and the builder need 132 of standardDSv6Family (4 of 104",
            "request 136 of standardDSv6Family in eastus",
        ),
        ("quota", {"spot": "true"}, "96 of lowPriorityCores (0 of 3 used", "96 of lowPriorityCores in eastus"),
        ("image", {"baseImage": "Canonical:nothing:server:1.0.0"}, "has no such image", "config set baseImage"),
    ],
)
def test_what_is_wrong_on_azure_comes_with_its_mend(
    check: str, changes: dict[str, str], detail: str, mend: str, make: Make, place: tuple[Arm, Cloud]
) -> None:
    found = finding(azure.check(make("azure-xeon", **changes), place[0]), check)
    assert found.state == "failed" and detail in found.detail and mend in found.mend, found


def machine(cloud: Cloud, name: str, size: str, *, stack_id: str = "", owner: str = "ada", **more: Any) -> None:
    """A machine of a stack with the name azure-xeon, in the resource group of that stack."""
    group = "resourceGroups/trainyard-azure-xeon" + (f"-{stack_id}" if stack_id else "")
    tags = {STACK_TAG: "azure-xeon", OWNER_TAG: owner, **({ID_TAG: stack_id} if stack_id else {})}
    path = f"{cloud.add(group, tags=tags)}/providers/Microsoft.Compute/virtualMachines"
    properties = {"hardwareProfile": {"vmSize": size}, **more}
    machine = {"name": f"trainyard-azure-xeon-{name}", "location": "eastus", "properties": properties}
    cloud.lists.setdefault(path, []).append(machine)


def test_a_cluster_that_runs_has_the_cores_that_it_needs(make: Make, place: tuple[Arm, Cloud]) -> None:
    """Its own machines are no others'; a builder counts, and does while it is deallocated."""
    arm, cloud = place
    settings = make("azure-xeon")
    for index in (1, 2, 3):
        machine(cloud, f"node{index}", "Standard_D32s_v6")
    machine(cloud, f"builder-{image.key(settings)[:12]}", "Standard_D4s_v6")
    usages = cloud.lists[f"{COMPUTE}/locations/eastus/usages"]
    usages[:] = [usage("cores", 104, 350), usage("lowPriorityCores", 0, 3), usage("standardDSv6Family", 104, 104)]
    found = finding(azure.check(settings, arm), "quota")
    assert found.state == "ok" and "(104 of 104 used, 100 of them by this stack)" in found.detail
    found = finding(azure.check(make("azure-xeon", nodes="4"), arm), "quota")
    assert found.state == "failed" and "request 136 of standardDSv6Family" in found.mend


@pytest.mark.parametrize("known", ["0123abcd", ""])
def test_the_machines_of_another_users_stack_of_the_same_name_are_counted_as_used(
    make: Make, place: tuple[Arm, Cloud], known: str
) -> None:
    """They have the same names, and a group with another id. Without an id of one's own, the owner's tag decides."""
    arm, cloud = place
    for index in (1, 2, 3):
        machine(cloud, f"node{index}", "Standard_D32s_v6", stack_id="89abcdef", owner="bob")
    machine(cloud, "node1", "Standard_D32s_v6", stack_id="0123abcd")
    usages = cloud.lists[f"{COMPUTE}/locations/eastus/usages"]
    usages[:] = [usage("cores", 128, 350), usage("standardDSv6Family", 128, 195)]
    found = finding(azure.check(replace(make("azure-xeon"), stack_id=known), arm), "quota")
    assert found.state == "failed" and "(128 of 195 used, 32 of them by this stack)" in found.detail
    assert "request 196 of standardDSv6Family in eastus" in found.mend


def test_another_images_builder_is_there_until_the_new_one_is_done(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    machine(cloud, "builder-0123456789ab", "Standard_D4s_v6")
    cloud.lists[f"{COMPUTE}/locations/eastus/usages"][2] = usage("standardDSv6Family", 4, 103)
    assert "request 104 of" in finding(azure.check(make("azure-xeon"), arm), "quota").mend


def test_spot_nodes_are_baked_for_on_demand(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    usages = cloud.lists[f"{COMPUTE}/locations/eastus/usages"]
    usages[1:] = [usage("lowPriorityCores", 96, 96), usage("standardDSv6Family", 0, 3)]
    for index in (1, 2, 3):
        machine(cloud, f"node{index}", "Standard_D32s_v6", priority="Spot")
    found = finding(azure.check(make("azure-xeon", spot="true"), arm), "quota")
    assert found.state == "failed" and "request 4 of standardDSv6Family" in found.mend


def test_a_size_that_this_subscription_may_not_have(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    refused = [{"type": "Location", "reasonCode": "NotAvailableForSubscription"}]
    cloud.lists[f"{COMPUTE}/skus"] = [
        sku("Standard_D32s_v6", restrictions=refused),
        sku("Standard_D32s_v6", locations=["westus"]),
    ]
    assert azure.offers(make("azure-xeon"), arm) == ["westus"]
    cloud.lists[f"{COMPUTE}/skus"].pop()
    (found,) = azure.cheap(make("azure-xeon"), arm)
    assert found.detail == "eastus does not offer Standard_D32s_v6 to this subscription: NotAvailableForSubscription"
    (found,) = azure.cheap(make("azure-xeon", instanceType="Standard_D33s_v6"), arm)
    assert found.detail == "eastus has no size Standard_D33s_v6"


def test_up_begins_with_the_sign_in_unless_only_pulumi_can(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ARM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/nonexistent")  # no `az`
    with pytest.raises(UsageError, match="az login"):
        account.cheap(make("azure-xeon"))
    monkeypatch.setenv("ARM_USE_OIDC", "true")
    account.cheap(make("azure-xeon"))


def test_rights_and_providers_that_lack(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    contributor = {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]}
    cloud.lists[f"{ROOT}/providers/Microsoft.Authorization/permissions"] = [contributor]
    cloud.things[f"{ROOT}/providers/microsoft.compute"]["registrationState"] = "NotRegistered"
    found = azure.check(make("azure-xeon"), arm)
    assert finding(found, "rights").detail.startswith("you may not Microsoft.Authorization/roleAssignments/write")
    assert finding(found, "providers").mend == "az provider register --wait --namespace Microsoft.Compute"


@pytest.mark.parametrize("flow_logs, state", [("true", "failed"), ("false", "ok")])
def test_flow_logs_need_one_more_provider(make: Make, place: tuple[Arm, Cloud], flow_logs: str, state: str) -> None:
    arm, cloud = place
    cloud.things[f"{ROOT}/providers/microsoft.insights"] = {"type": "provider", "registrationState": "NotRegistered"}
    found = azure.check(make("azure-xeon", flowLogs=flow_logs), arm)
    assert finding(found, "providers").state == state
    if flow_logs == "true":
        assert finding(found, "providers").mend == "az provider register --wait --namespace Microsoft.Insights"


def test_a_subscription_that_is_not_there_or_does_not_answer(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    del cloud.things[ROOT]
    (only,) = azure.check(make("azure-xeon"), arm)
    assert (only.check, only.state) == ("sign-in", "failed")
    nowhere = Arm(SUBSCRIPTION, endpoint="http://127.0.0.1:1", who=Who(), retries=0)
    (only,) = azure.check(make("azure-xeon"), nowhere)
    assert (only.check, only.state) == ("sign-in", "undecided")


def test_one_image_by_id_in_another_region_is_told(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    image = (
        f"{ROOT}/resourceGroups/g/providers/Microsoft.Compute/galleries/trainyard/images/"
        "trainyard-0123456789abcdef/versions/1.0.0"
    )
    cloud.things[image.lower()] = {
        "type": "version",
        "properties": {
            "provisioningState": "Succeeded",
            "publishingProfile": {"targetRegions": [{"name": "West US"}]},
        },
    }
    settings = make("azure-xeon", image=image)
    found = finding(azure.check(settings, arm), "image")
    assert found.state == "failed" and "in westus, not in eastus" in found.detail
    elsewhere = replace(settings, image=image.replace("1.0.0", "2.0.0"))
    assert "404 ResourceNotFound" in finding(azure.check(elsewhere, arm), "image").detail
