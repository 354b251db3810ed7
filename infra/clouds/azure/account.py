"""Checks that the Azure subscription can hold the stack. Reads only."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

from infra.clouds.azure import machine_types, quota
from infra.clouds.azure.arm import Arm, ArmError
from infra.clouds.azure.credentials import SIGN_IN, subscription
from infra.clouds.azure.image import base_image
from infra.clouds.azure.names import DEFAULT_REGION, region
from infra.clouds.azure.quota import Sku
from infra.clouds.finding import Finding
from infra.config.settings import Settings
from infra.config.values import set_key
from infra.errors import UsageError

RESOURCES, SUBSCRIPTIONS, SKUS = "2021-04-01", "2022-12-01", "2021-07-01"
IMAGES, GALLERIES, PERMISSIONS = "2024-07-01", "2024-03-03", "2022-04-01"
"""API versions."""
NAMESPACES = ("Microsoft.Compute", "Microsoft.Network", "Microsoft.Storage", "Microsoft.ManagedIdentity")
"""Resource providers that must be registered in the subscription. Those of resource groups, roles and budgets always
are."""
FLOW_LOG_NAMESPACE = "Microsoft.Insights"
"""Flow logs need it as well: without it Network Watcher writes none."""
ACTIONS = (
    *("Microsoft.Resources/subscriptions/resourceGroups/write", "Microsoft.Compute/virtualMachines/write"),
    *("Microsoft.Compute/galleries/images/versions/write", "Microsoft.Network/virtualNetworks/write"),
    *("Microsoft.Storage/storageAccounts/write", "Microsoft.ManagedIdentity/userAssignedIdentities/write"),
    *("Microsoft.ManagedIdentity/userAssignedIdentities/assign/action", "Microsoft.Consumption/budgets/write"),
    "Microsoft.Authorization/roleAssignments/write",
    "Microsoft.Authorization/roleDefinitions/write",
)
"""A sample of the actions that `up` needs, at least one for each kind of resource."""


FLOW_LOG_ACTION = "Microsoft.Network/networkWatchers/flowLogs/write"


def namespaces(settings: Settings) -> tuple[str, ...]:
    """The resource providers that these settings need."""
    return (*NAMESPACES, FLOW_LOG_NAMESPACE) if settings.cloud.flow_logs else NAMESPACES


def check(settings: Settings, arm: Arm | None = None) -> list[Finding]:
    """All checks. Later ones need earlier ones, so a failed sign-in ends the list."""
    return list(_findings(settings, arm))


def cheap(settings: Settings, arm: Arm | None = None) -> list[Finding]:
    """The check that `up` starts with: does the region, and the zone if one is set, offer the size?"""
    return [_size(settings, _skus(arm or Arm(subscription()), settings))]


def offers(settings: Settings, arm: Arm | None = None) -> list[str]:
    """Regions that offer the nodes' size to this subscription. Raises ArmError when Azure cannot be asked."""
    arm = arm or Arm(subscription())
    wanted, found = _name(settings), set()
    for item in arm.every(f"{arm.subscription}/providers/Microsoft.Compute/skus", SKUS):
        if item.get("resourceType") == "virtualMachines" and item["name"].lower() == wanted.lower():
            found |= {place.lower() for place in item["locations"] if not _sku(item).refused}
    return sorted(found)


def _name(settings: Settings) -> str:
    return settings.cloud.instance_type or machine_types.DEFAULT


def _findings(settings: Settings, arm: Arm | None) -> Iterator[Finding]:
    try:
        arm = arm or Arm(subscription())
        who = arm.get(arm.subscription, SUBSCRIPTIONS)
    except UsageError as error:
        yield Finding("sign-in", "failed", str(error).partition(";")[0], SIGN_IN)
        return
    except ArmError as error:
        denied = any(word in str(error) for word in (" 401 ", " 403 ", " 404 "))
        yield Finding("sign-in", "failed" if denied else "undecided", str(error), SIGN_IN)
        return
    if who.get("state") != "Enabled":
        look = "https://portal.azure.com/#view/Microsoft_Azure_Billing/SubscriptionsBlade"
        yield Finding("sign-in", "failed", f"subscription {who.get('displayName')} is {who.get('state')}", look)
        return
    yield Finding("sign-in", "ok", f"subscription {who.get('displayName')} ({arm.subscription[15:]})")
    checks = (_providers, _region, _size_and_quota, _image, _rights)
    for one in checks:
        try:
            yield from one(arm, settings)
        except ArmError as error:
            yield Finding(one.__name__.strip("_"), "undecided", str(error), f"fab check --account, or {SIGN_IN}")


def _providers(arm: Arm, settings: Settings) -> Iterator[Finding]:
    names = namespaces(settings)
    for name in names:
        state = arm.get(f"{arm.subscription}/providers/{name}", RESOURCES).get("registrationState")
        if state != "Registered":
            yield Finding(
                "providers", "failed", f"{name} is {state}", f"az provider register --wait --namespace {name}"
            )
            return
    yield Finding("providers", "ok", f"{', '.join(name.partition('.')[2] for name in names)} are registered")


def _region(arm: Arm, settings: Settings) -> Iterator[Finding]:
    names = [item["name"] for item in arm.every(f"{arm.subscription}/locations", SUBSCRIPTIONS)]
    if region(settings) in names:
        yield Finding("region", "ok", region(settings))
    else:
        mend = set_key("region", DEFAULT_REGION, settings.stack)
        yield Finding("region", "failed", f"this subscription has no region {region(settings)}", mend)


def _skus(arm: Arm, settings: Settings) -> dict[str, Sku]:
    """Every machine size of the region, by its name in lower case."""
    wanted = {"$filter": f"location eq '{region(settings)}'"}
    listed = arm.every(f"{arm.subscription}/providers/Microsoft.Compute/skus", SKUS, **wanted)
    return {item["name"].lower(): _sku(item) for item in listed if item.get("resourceType") == "virtualMachines"}


def _sku(item: dict[str, Any]) -> Sku:
    said = {entry["name"]: entry["value"] for entry in item.get("capabilities", [])}
    whole = [entry for entry in item.get("restrictions", []) if entry.get("type") == "Location"]
    parts = [entry for entry in item.get("restrictions", []) if entry.get("type") == "Zone"]
    return Sku(
        family=item.get("family", ""),
        vcpus=int(said.get("vCPUs", 0)),
        zones=tuple(sorted(zone for entry in item.get("locationInfo", []) for zone in entry.get("zones", []))),
        refused=whole[0].get("reasonCode", "restricted") if whole else "",
        refused_zones=tuple(zone for entry in parts for zone in entry.get("restrictionInfo", {}).get("zones", [])),
    )


def _size(settings: Settings, skus: dict[str, Sku]) -> Finding:
    name, where, zone = _name(settings), region(settings), settings.cloud.zone
    sku = skus.get(name.lower())
    if sku is None:
        mend = set_key("instanceType", machine_types.DEFAULT, settings.stack)
        return Finding("type", "failed", f"{where} has no size {name}", mend)
    if sku.refused:
        ask = f"https://aka.ms/azureskunotavailable, or {set_key('region', '...', settings.stack)}"
        return Finding("type", "failed", f"{name} is not to be had in {where}: {sku.refused}", ask)
    free = [entry for entry in sku.zones if entry not in sku.refused_zones]
    if zone and zone not in free:
        said = f"zone {zone} of {where} does not offer {name}; these do: {', '.join(free) or 'none'}"
        return Finding("type", "failed", said, set_key("zone", free[0] if free else '""', settings.stack))
    return Finding("type", "ok", f"{where} offers {name}, {sku.vcpus} vCPUs (zones {', '.join(free) or 'none'})")


def _size_and_quota(arm: Arm, settings: Settings) -> Iterator[Finding]:
    skus = _skus(arm, settings)
    finding = _size(settings, skus)
    yield finding
    if finding.state == "ok":
        yield quota.check(arm, settings, skus)


def _image(arm: Arm, settings: Settings) -> Iterator[Finding]:
    if settings.image != "bake":
        yield _version(arm, settings)
        return
    name = base_image(settings)
    publisher, offer, sku, version = name.split(":")
    path = (
        f"{arm.subscription}/providers/Microsoft.Compute/locations/{region(settings)}/publishers/{publisher}"
        f"/artifacttypes/vmimage/offers/{offer}/skus/{sku}/versions"
    )
    mend = set_key("baseImage", '""', settings.stack)
    # This listing is a bare JSON list, without pages.
    listed = [item["name"] for item in arm.plain(path, IMAGES)]
    if version in listed:
        yield Finding("image", "ok", name)
    else:
        yield Finding("image", "failed", f"baseImage {name}: {region(settings)} has no such image", mend)


def _version(arm: Arm, settings: Settings) -> Finding:
    mend = set_key("image", "bake", settings.stack)
    try:
        properties = arm.get(settings.image, GALLERIES)["properties"]
    except ArmError as error:
        if " 404 " in str(error) or " 403 " in str(error):
            return Finding("image", "failed", f"image: {error}", mend)
        raise
    regions = [item["name"].lower().replace(" ", "") for item in properties["publishingProfile"]["targetRegions"]]
    if properties.get("provisioningState") != "Succeeded" or region(settings) not in regions:
        said = f"image is {properties.get('provisioningState')}, in {', '.join(regions)}, not in {region(settings)}"
        return Finding("image", "failed", said, mend)
    return Finding("image", "ok", settings.image.split("/providers/")[-1])


def _rights(arm: Arm, settings: Settings) -> Iterator[Finding]:
    listed = arm.every(f"{arm.subscription}/providers/Microsoft.Authorization/permissions", PERMISSIONS)
    actions = (*ACTIONS, FLOW_LOG_ACTION) if settings.cloud.flow_logs else ACTIONS
    denied = [action for action in actions if not any(_allows(entry, action) for entry in listed)]
    if denied:
        role = f'az role assignment create --role Owner --assignee ... --scope "{arm.subscription}"'
        yield Finding("rights", "failed", f"you may not {', '.join(denied)}", role)
    else:
        yield Finding("rights", "ok", f"{len(actions)} actions that `up` needs are allowed")


def _allows(entry: dict[str, Any], action: str) -> bool:
    """Whether one role allows an action: in `actions` and not in `notActions`, where * matches any text."""
    return _matches(entry.get("actions", []), action) and not _matches(entry.get("notActions", []), action)


def _matches(patterns: list[str], action: str) -> bool:
    return any(fnmatch.fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)
