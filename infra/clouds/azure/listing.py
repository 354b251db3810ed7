"""Lists a stack's resources in its subscription: whatever carries its tag, and everything in its resource groups.

The stack made the groups that carry its tag, so their content belongs to it (a disk made with a machine has no tag),
unless it carries another stack's tag, or the id of another stack of the same name. A group of another stack of the
same name is listed as one item and not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from infra.clouds.azure import machine_types, untagged
from infra.clouds.azure.arm import Arm, ArmError
from infra.clouds.azure.running_machine import power_state
from infra.clouds.live_resource import LiveResource
from infra.clouds.naming import ID_TAG, STACK_TAG
from infra.errors import UsageError
from infra.prices import table
from infra.state.ownership import Claim

RESOURCES = "2021-04-01"
"""API version."""
GROUP, ACCOUNT = "resource group", "storage account"


class ArmType(NamedTuple):
    """A type of resource (ARM's, in lower case, as ARM varies the case), its name in the audit, and the API version
    that pulumi-azure-native 3.29 uses."""

    type: str
    name: str
    version: str


KINDS = (
    # Flow logs are in Azure's own NetworkWatcherRG; they go before their VNet and storage account.
    ArmType("microsoft.network/networkwatchers/flowlogs", "flow log", "2024-05-01"),
    ArmType("microsoft.compute/virtualmachines", "machine", "2024-11-01"),
    ArmType("microsoft.network/networkinterfaces", "network interface", "2024-05-01"),
    ArmType("microsoft.compute/disks", "disk", "2024-03-02"),
    ArmType("microsoft.compute/galleries/images/versions", "gallery version", "2024-03-03"),
    ArmType("microsoft.compute/galleries/images", "gallery definition", "2024-03-03"),
    ArmType("microsoft.compute/galleries", "gallery", "2024-03-03"),
    ArmType("microsoft.compute/snapshots", "snapshot", "2024-03-02"),
    ArmType("microsoft.network/virtualnetworks", "network", "2024-05-01"),
    ArmType("microsoft.network/natgateways", "NAT gateway", "2024-05-01"),
    ArmType("microsoft.network/networksecuritygroups", "security group", "2024-05-01"),
    ArmType("microsoft.network/publicipaddresses", "address", "2024-05-01"),
    ArmType("microsoft.compute/proximityplacementgroups", "proximity placement group", "2024-11-01"),
    ArmType("microsoft.compute/sshpublickeys", "SSH key", "2024-11-01"),
    ArmType("microsoft.managedidentity/userassignedidentities", "identity", "2023-01-31"),
    ArmType("microsoft.storage/storageaccounts", ACCOUNT, "2024-01-01"),
)
"""In the order of removal; then come resources without tags (infra.clouds.azure.untagged), then the groups."""
ORDER = (*(kind.name for kind in KINDS), *untagged.VERSIONS, "other", GROUP)
VERSIONS = {**{kind.name: kind.version for kind in KINDS}, **untagged.VERSIONS, GROUP: RESOURCES}
"""API version for the removal of each kind."""
_BY_TYPE = {kind.type: kind for kind in KINDS}
_INSIDE_A_MACHINE = ("microsoft.compute/virtualmachines/extensions", "microsoft.compute/virtualmachines/runcommands")


def groups(arm: Arm, stack: str) -> list[dict[str, Any]]:
    """The resource groups with the stack's tag."""
    return _tagged(arm, "resourcegroups", stack)


def _tagged(arm: Arm, what: str, stack: str) -> list[dict[str, Any]]:
    wanted = f"tagName eq '{STACK_TAG}' and tagValue eq '{stack}'"
    listed = arm.every(f"{arm.subscription}/{what}", RESOURCES, **{"$filter": wanted})
    return [item for item in listed if (item.get("tags") or {}).get(STACK_TAG) == stack]


def resources(arm: Arm, stack: str, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Everything with the stack's tag, in any group, and everything in the stack's `own` groups; each once."""
    inside = (item for group in own for item in arm.every(f"{group['id']}/resources", RESOURCES))
    found = {item["id"].lower(): item for item in (*inside, *_tagged(arm, "resources", stack))}
    return [item for item in found.values() if item["type"].lower() not in _INSIDE_A_MACHINE]


def find(arm: Arm, claim: Claim) -> list[LiveResource]:
    """Everything with the stack's name, groups last. A kind that cannot be listed is returned as unseen."""
    tagged = groups(arm, claim.stack)
    whose = {group["id"].lower(): claim.whose(group["tags"]) for group in tagged}
    own = [group for group in tagged if not whose[group["id"].lower()]]
    others = tuple(f"{group}/" for group, name in whose.items() if name)
    found = [
        _live(arm, claim, item)
        for item in resources(arm, claim.stack, own)
        if not (item["id"].lower().startswith(others) and _is_theirs(claim, item.get("tags") or {}))
    ]
    found += untagged.find(arm, claim, own)
    for group in tagged:
        other = whose[identifier := group["id"].lower()]
        found.append(LiveResource(GROUP, group["name"], identifier, ours=not other, whose=other))
    return sorted(found, key=lambda live: ORDER.index(live.kind))


def _is_theirs(claim: Claim, tags: dict[str, str]) -> bool:
    """Whether an item belongs to another stack. In another stack's group everything does but what carries our id."""
    return ID_TAG not in tags or bool(claim.whose(tags))


def _live(arm: Arm, claim: Claim, item: dict[str, Any]) -> LiveResource:
    kind, identifier, tags = _BY_TYPE.get(item["type"].lower()), item["id"].lower(), item.get("tags") or {}
    # The name without its type; a gallery version's includes the gallery and the image.
    name = "/".join(item["id"].split("/providers/")[-1].split("/")[2::2])
    whose = claim.whose(tags)
    live = LiveResource(
        kind.name if kind else "other",
        name if kind else f"{name} ({item['type']})",
        (item.get("managedBy") or identifier).lower(),
        identifier,
        usd_per_hour=0.0 if kind else None,
        ours=tags.get(STACK_TAG, claim.stack) == claim.stack and not whose,
        whose=whose,
    )
    if kind is None or whose:
        return live
    if kind.name in _PRICED:
        return replace(live, usd_per_hour=_price(item, _PRICED[kind.name]))
    try:
        detail = _DETAILS[kind.name](arm, item, kind.version) if kind.name in _DETAILS else Detail()
    except ArmError as error:
        # It exists, but its price is unknown; a storage account that cannot be read is treated as not empty.
        contents = "contents that cannot be read" if kind.name == ACCOUNT else ""
        detail = Detail(f"(cannot be read: {error})", None, contents)
    return replace(live, what=f"{name} {detail.what}".strip(), usd_per_hour=detail.usd, holds=detail.holds)


class Detail(NamedTuple):
    """What only a second request for the resource returns."""

    what: str = ""
    usd: float | None = 0.0
    holds: str = ""


def _price(item: dict[str, Any], sku: str, count: float = 1) -> float | None:
    try:
        return table.line("azure", item.get("location", ""), sku, count).usd_per_hour
    except UsageError:
        return None


def _machine(arm: Arm, item: dict[str, Any], version: str) -> Detail:
    properties = arm.get(item["id"], version, **{"$expand": "instanceView"})["properties"]
    size = properties["hardwareProfile"]["vmSize"]
    state = power_state(properties.get("instanceView", {})) or "unknown"
    sku = f"{size}/spot" if properties.get("priority") == "Spot" else size
    # A machine that was powered off from inside is still billed; only a deallocated one is not.
    return Detail(f"{size} {state}", 0.0 if state == "deallocated" else _price(item, sku))


def _disk(arm: Arm, item: dict[str, Any], version: str) -> Detail:
    found = arm.get(item["id"], version)
    size, storage = found["properties"]["diskSizeGB"], found["sku"]["name"]
    try:
        price = _price(item, f"managed-disk-{machine_types.tier(storage, size)}")
    except (KeyError, StopIteration):
        price = None  # a disk type or size that is not in the table
    return Detail(f"{size} GB {storage}", price)


def _snapshot(arm: Arm, item: dict[str, Any], version: str) -> Detail:
    size = arm.get(item["id"], version)["properties"].get("diskSizeGB", 0)
    return Detail(f"of {size} GB", _price(item, "snapshot-gb-month", size))


def _version(arm: Arm, item: dict[str, Any], version: str) -> Detail:
    properties = arm.get(item["id"], version)["properties"]
    size = properties.get("storageProfile", {}).get("osDiskImage", {}).get("sizeInGB")
    regions = properties.get("publishingProfile", {}).get("targetRegions", [])
    replicas = sum(region.get("regionalReplicaCount", 1) for region in regions) or 1
    price = _price(item, "gallery-version-gb-month", size * replicas) if size else None
    return Detail(f"{replicas} x {size or '?'} GB", price)


def _account(arm: Arm, item: dict[str, Any], version: str) -> Detail:
    url = arm.get(item["id"], version)["properties"]["primaryEndpoints"]["blob"].rstrip("/")
    containers = arm.every(f"{item['id']}/blobServices/default/containers", version)
    held = [arm.blobs(f"{url}/{container['name']}") for container in containers]
    count, size = sum(blobs for blobs, _ in held), sum(length for _, length in held)
    price = _price(item, "blob-gb-month", size / 1e9) if size else 0.0
    holds = f"{count} blobs ({size / 1e9:.3g} GB, with older versions and deleted ones)" if count else ""
    return Detail("", price, holds)


_DETAILS: dict[str, Callable[[Arm, dict[str, Any], str], Detail]] = {
    "machine": _machine,
    "disk": _disk,
    "snapshot": _snapshot,
    "gallery version": _version,
    ACCOUNT: _account,
}
_PRICED = {"NAT gateway": "nat-gateway", "address": "public-ip-standard"}
