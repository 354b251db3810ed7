"""Two people, one Azure subscription, two stacks of one name: each verb leaves the other's alone, and names it."""

from __future__ import annotations

import azure_subscription
import pytest
from azure_subscription import SUBSCRIPTION, Who
from invoke.exceptions import Exit
from moto_cloud import Stack
from operators import ADA, BOB, VERBS, Become, Operator, own

from infra.clouds.azure import listing
from infra.clouds.azure import orphans as azure_leftovers
from infra.clouds.azure.arm import Arm
from infra.clouds.live_resource import LiveResource
from infra.state.ownership import Location

pytest_plugins = ("operators",)


@pytest.mark.parametrize("verb", VERBS)
def test_on_azure_the_second_ones_verbs_leave_the_firsts_cluster_alone(
    verb: str, become: Become, ada: Operator, bob: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.cluster = bob.cluster = "azure-xeon"
    ada.up({}, ADA)
    bob.up({}, BOB)
    with azure_subscription.azure() as (endpoint, cloud):
        monkeypatch.setattr(azure_leftovers, "subscription", lambda: SUBSCRIPTION)
        monkeypatch.setattr(
            azure_leftovers, "Arm", lambda subscription: Arm(subscription, endpoint=endpoint, who=Who(), wait=0)
        )
        for one in (ADA, BOB):
            _fill(cloud, one)
        become(ada)
        before = own(ada)
        become(bob)
        with pytest.raises(Exit, match=r"belongs? to ada, stack id aaaa1111: not touched") as no:
            VERBS[verb]()
        assert no.value.code == 1
        assert bool(own(bob)) == (verb != "recover"), "no state knows it, so a recovery removes it"
        become(ada)
        assert own(ada) == before and len(before) > 3


def _fill(cloud: azure_subscription.Cloud, one: Stack) -> None:
    tags = {tag["Key"]: tag["Value"] for tag in one.tags()}
    group = f"resourceGroups/trainyard-{one.unique}"
    cloud.add(group, tags=tags)
    machine = cloud.add(f"{group}/providers/Microsoft.Compute/virtualMachines/node1", tags=tags)
    cloud.things[machine.lower()]["properties"] = {"hardwareProfile": {"vmSize": "Standard_D32s_v6"}}
    # What Azure makes beside it has no tags: it is its group's.
    cloud.add(
        f"{group}/providers/Microsoft.Compute/disks/node1-os",
        managedBy=machine,
        sku={"name": "Premium_LRS"},
        properties={"diskSizeGB": 256},
    )
    cloud.add(f"{group}/providers/Microsoft.Network/virtualNetworks/net", tags=tags)
    watcher = "resourceGroups/NetworkWatcherRG/providers/Microsoft.Network/networkWatchers/w"
    cloud.add(f"{watcher}/flowLogs/trainyard-{one.unique}-flow-logs", tags=tags)


def test_on_azure_another_subscription_is_looked_at_as_well(
    become: Become, bob: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    other = "99999999-2222-3333-4444-555555555555"

    def listed(rest: Arm, _claim: object) -> list[LiveResource]:
        asked.append(rest.subscription)
        return []

    bob.cluster = "azure-xeon"
    become(bob)
    bob.up({}, BOB, Location("azure", "eastus", other), Location("azure", "westeurope", SUBSCRIPTION))
    monkeypatch.setattr(azure_leftovers, "subscription", lambda: SUBSCRIPTION)
    monkeypatch.setattr(
        azure_leftovers, "Arm", lambda subscription: Arm(subscription, endpoint="http://127.0.0.1:9", who=Who())
    )
    monkeypatch.setattr(listing, "find", listed)
    assert own(bob) == []
    assert asked == [f"/subscriptions/{SUBSCRIPTION}", f"/subscriptions/{other}"]
