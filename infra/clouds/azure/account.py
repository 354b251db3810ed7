"""Checks that the Azure subscription can hold the stack. Reads only."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from typing import Any

from infra.clouds.azure import machine_types, quota
from infra.clouds.azure.arm import Arm, ArmError
from infra.clouds.azure.credentials import SIGN_IN, subscription
from infra.clouds.azure.image import base_image
from infra.clouds.azure.names import DEFAULT_REGION, region
from infra.clouds.azure.quota import Sku
from infra.clouds.finding import Finding, State
from infra.config.settings import Settings
from infra.config.values import set_key
from infra.errors import UsageError

RESOURCES, SUBSCRIPTIONS, SKUS = "2021-04-01", "2022-12-01", "2021-07-01"
IMAGES, GALLERIES, PERMISSIONS = "2024-07-01", "2024-03-03", "2022-04-01"
"""API versions."""
NAMESPACES = ("Microsoft.Compute", "Microsoft.Network", "Microsoft.Storage", "Microsoft.ManagedIdentity")
"""Resource providers that must be registered in the subscription. Those of resource groups, roles and budgets always
are."""
FLOW_LOG_NAMESPACE, FLOW_LOG_ACTION = "Microsoft.Insights", "Microsoft.Network/networkWatchers/flowLogs/write"
"""Flow logs need them as well: without the namespace Network Watcher writes none."""
ACTIONS = (
    *("Microsoft.Resources/subscriptions/resourceGroups/write", "Microsoft.Compute/virtualMachines/write"),
    *("Microsoft.Compute/galleries/images/versions/write", "Microsoft.Network/virtualNetworks/write"),
    *("Microsoft.Storage/storageAccounts/write", "Microsoft.ManagedIdentity/userAssignedIdentities/write"),
    *("Microsoft.ManagedIdentity/userAssignedIdentities/assign/action", "Microsoft.Consumption/budgets/write"),
    *("Microsoft.Authorization/roleAssignments/write", "Microsoft.Authorization/roleDefinitions/write"),
)
"""A sample of the actions that `up` needs, at least one for each kind of resource."""


def check(settings: Settings, arm: Arm | None = None) -> list[Finding]:
    """All checks. Later ones need earlier ones, so a failed sign-in ends the list."""
    return list(_findings(settings, arm))


def cheap(settings: Settings, arm: Arm | None = None) -> list[Finding]:
    """The check that `up` starts with: does the region, and the zone if one is set, offer the size? UsageError without
    credentials; none with ARM_USE_OIDC, by which Pulumi's provider can sign in, and we cannot."""
    if arm is None and os.environ.get("ARM_USE_OIDC", "").lower() == "true":
        return []
    return [_size(settings, _skus(arm or Arm(subscription()), settings))]


def offers(settings: Settings, arm: Arm | None = None) -> list[str]:
    """Regions that offer the nodes' size to this subscription. Raises ArmError when Azure cannot be asked."""
    listed = _machine_skus(arm or Arm(subscription()))
    own = [item for item in listed if item["name"].lower() == _name(settings).lower() and not _sku(item).refused]
    return sorted({place.lower() for item in own for place in item["locations"]})


def _name(settings: Settings) -> str:
    return settings.cloud.instance_type or machine_types.DEFAULT


def _findings(settings: Settings, arm: Arm | None) -> Iterator[Finding]:
    try:
        arm = arm or Arm(subscription())
        own = arm.get(arm.subscription, SUBSCRIPTIONS)
    except UsageError as error:
        yield Finding("sign-in", "failed", str(error).partition(";")[0], SIGN_IN)
        return
    except ArmError as error:
        state: State = "failed" if error.status in (401, 403, 404) else "undecided"
        yield Finding("sign-in", state, str(error), SIGN_IN)
        return
    if own.get("state") != "Enabled":
        look = "https://portal.azure.com/#view/Microsoft_Azure_Billing/SubscriptionsBlade"
        yield Finding("sign-in", "failed", f"subscription {own.get('displayName')} is {own.get('state')}", look)
        return
    yield Finding("sign-in", "ok", f"subscription {own.get('displayName')} ({arm.subscription[15:]})")
    for one in (_providers, _region, _size_and_quota, _image, _rights):
        try:
            yield from one(arm, settings)
        except ArmError as error:
            yield Finding(one.__name__.strip("_"), "undecided", str(error), f"fab check --account, or {SIGN_IN}")


def _result(check: str, wrong: str, mend: str, good: str) -> list[Finding]:
    """Failed with the repair if something is wrong, ok otherwise."""
    return [Finding(check, "failed", wrong, mend) if wrong else Finding(check, "ok", good)]


def _providers(arm: Arm, settings: Settings) -> list[Finding]:
    names = (*NAMESPACES, FLOW_LOG_NAMESPACE) if settings.cloud.flow_logs else NAMESPACES
    for name in names:
        state = arm.get(f"{arm.subscription}/providers/{name}", RESOURCES).get("registrationState")
        if state != "Registered":
            return _result("providers", f"{name} is {state}", f"az provider register --wait --namespace {name}", "")
    return _result("providers", "", "", f"{', '.join(name.partition('.')[2] for name in names)} are registered")


def _region(arm: Arm, settings: Settings) -> list[Finding]:
    where = region(settings)
    there = any(item["name"] == where for item in arm.every(f"{arm.subscription}/locations", SUBSCRIPTIONS))
    wrong = "" if there else f"this subscription has no region {where}"
    return _result("region", wrong, set_key("region", DEFAULT_REGION, settings.stack), where)


def _machine_skus(arm: Arm, **query: str) -> list[dict[str, Any]]:
    listed = arm.every(f"{arm.subscription}/providers/Microsoft.Compute/skus", SKUS, **query)
    return [item for item in listed if item.get("resourceType") == "virtualMachines"]


def _skus(arm: Arm, settings: Settings) -> dict[str, Sku]:
    """Every machine size of the region, by its name in lower case."""
    listed = _machine_skus(arm, **{"$filter": f"location eq '{region(settings)}'"})
    return {item["name"].lower(): _sku(item) for item in listed}


def _sku(item: dict[str, Any]) -> Sku:
    capabilities = {entry["name"]: entry["value"] for entry in item.get("capabilities", [])}
    zones = {zone for entry in item.get("locationInfo", []) for zone in entry.get("zones", [])}
    refused = ""
    for entry in item.get("restrictions", []):
        if entry.get("type") == "Location":
            refused = entry.get("reasonCode", "restricted")
        if entry.get("type") == "Zone":
            zones -= set(entry.get("restrictionInfo", {}).get("zones", []))
    return Sku(item.get("family", ""), int(capabilities.get("vCPUs", 0)), tuple(sorted(zones)), refused)


def _size(settings: Settings, skus: dict[str, Sku]) -> Finding:
    name, where, zone = _name(settings), region(settings), settings.cloud.zone
    sku = skus.get(name.lower())
    if sku is None:
        mend = set_key("instanceType", machine_types.DEFAULT, settings.stack)
        return Finding("type", "failed", f"{where} has no size {name}", mend)
    if sku.refused:
        mend = f"https://aka.ms/azureskunotavailable, or {set_key('region', '...', settings.stack)}"
        return Finding("type", "failed", f"{where} does not offer {name} to this subscription: {sku.refused}", mend)
    zones = ", ".join(sku.zones) or "none"
    if zone and zone not in sku.zones:
        mend = set_key("zone", sku.zones[0] if sku.zones else '""', settings.stack)
        return Finding("type", "failed", f"zone {zone} of {where} does not offer {name}; these do: {zones}", mend)
    return Finding("type", "ok", f"{where} offers {name}, {sku.vcpus} vCPUs (zones {zones})")


def _size_and_quota(arm: Arm, settings: Settings) -> Iterator[Finding]:
    skus = _skus(arm, settings)
    finding = _size(settings, skus)
    yield finding
    if finding.state == "ok":
        yield quota.check(arm, settings, skus)


def _image(arm: Arm, settings: Settings) -> list[Finding]:
    where, baked = region(settings), settings.image != "bake"
    image = settings.image if baked else base_image(settings)
    try:
        wrong = _unusable(arm, image, where) if baked else _unlisted(arm, image, where)
    except ArmError as error:
        if not (error.status == 404 or (error.status == 403 and baked)):
            raise
        wrong = f"image: {error}" if baked else f"baseImage {image}: {where} has no such image"
    key, default = ("image", "bake") if baked else ("baseImage", '""')
    return _result("image", wrong, set_key(key, default, settings.stack), image.split("/providers/")[-1])


def _unlisted(arm: Arm, image: str, where: str) -> str:
    """What is wrong with an image of the marketplace; empty if a region has it."""
    publisher, offer, sku, version = image.split(":")
    path = (
        f"{arm.subscription}/providers/Microsoft.Compute/locations/{where}/publishers/{publisher}"
        f"/artifacttypes/vmimage/offers/{offer}/skus/{sku}/versions"
    )
    listed = any(item["name"] == version for item in arm.every(path, IMAGES))
    return "" if listed else f"baseImage {image}: {where} has no such image"


def _unusable(arm: Arm, image: str, where: str) -> str:
    """What is wrong with a baked image; empty if a region has it."""
    properties = arm.get(image, GALLERIES)["properties"]
    regions = [item["name"].lower().replace(" ", "") for item in properties["publishingProfile"]["targetRegions"]]
    state = properties.get("provisioningState")
    usable = state == "Succeeded" and where in regions
    return "" if usable else f"image is {state}, in {', '.join(regions)}, not in {where}"


def _rights(arm: Arm, settings: Settings) -> list[Finding]:
    listed = arm.every(f"{arm.subscription}/providers/Microsoft.Authorization/permissions", PERMISSIONS)
    actions = (*ACTIONS, FLOW_LOG_ACTION) if settings.cloud.flow_logs else ACTIONS
    denied = ", ".join(action for action in actions if not any(_allows(entry, action) for entry in listed))
    role = f'az role assignment create --role Owner --assignee ... --scope "{arm.subscription}"'
    wrong = f"you may not {denied}" if denied else ""
    return _result("rights", wrong, role, f"{len(actions)} actions that `up` needs are allowed")


def _allows(entry: dict[str, Any], action: str) -> bool:
    """Whether one role allows an action: in `actions` and not in `notActions`, where * matches any text."""
    listed, excepted = (
        any(fnmatch.fnmatchcase(action.lower(), pattern.lower()) for pattern in entry.get(key, []))
        for key in ("actions", "notActions")
    )
    return listed and not excepted
