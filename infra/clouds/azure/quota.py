"""Checks that the subscription's quota has room for the stack's vCPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from infra.clouds import naming
from infra.clouds.azure import listing, machine_types
from infra.clouds.azure.arm import Arm
from infra.clouds.azure.image import key
from infra.clouds.azure.names import name, region
from infra.clouds.finding import Finding
from infra.config.settings import Settings

USAGES, MACHINES = "2024-07-01", "2024-11-01"
"""API versions."""
SPOT, TOTAL = "lowPriorityCores", "cores"
LOOK = "https://portal.azure.com/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"


@dataclass(frozen=True)
class Sku:
    """A machine size as a region offers it to a subscription."""

    family: str
    vcpus: int
    zones: tuple[str, ...]
    """Zones in which the subscription may use it."""
    refused: str
    """Azure's reason why this subscription may not use it in the region; empty if it may."""


def check(arm: Arm, settings: Settings, skus: Mapping[str, Sku]) -> Finding:
    """Compare the vCPUs that the stack needs with the free quota. `skus`: by name in lower case, the nodes' among them.

    The stack's existing machines are not counted twice. Azure counts deallocated machines too.
    """
    where, size = region(settings), machine_types.of(settings)
    builder = size.builder if settings.image == "bake" else ""
    if builder and builder.lower() not in skus:
        return Finding("quota", "failed", f"{where} has no size {builder}, on which the image is baked", LOOK)
    machines = [(size.name, settings.cloud.spot)] * settings.nodes + ([(builder, False)] if builder else [])
    own = _count(_own(arm, settings), skus)
    path = f"{arm.subscription}/providers/Microsoft.Compute/locations/{where}/usages"
    usages = {item["name"]["value"].lower(): item for item in arm.every(path, USAGES)}
    need = f"{settings.nodes} nodes{' and the builder' if builder else ''} need"
    compared = []
    for quota, vcpus in _count(machines, skus).items():
        usage = usages.get(quota.lower())
        if usage is None:
            return Finding("quota", "undecided", f"{where} has no quota named {quota}", LOOK)
        limit, used = usage["limit"], usage["currentValue"]
        mine = f", {own[quota]} of them by this stack" if own[quota] else ""
        compared.append(f"{vcpus} of {usage['name'].get('localizedValue', quota)} ({used} of {limit} used{mine})")
        wanted = vcpus + max(0, used - own[quota])
        if wanted > limit:
            mend = f"{LOOK} (request {wanted} of {quota} in {where})"
            return Finding("quota", "failed", f"{need} {compared[-1]}", mend)
    return Finding("quota", "ok", f"{need} {', '.join(compared)}")


def _count(machines: list[tuple[str, bool]], skus: Mapping[str, Sku]) -> Counter[str]:
    """vCPUs by quota. `machines`: (size, is it Spot). A size counts against its family's quota and the region's; Spot
    has one of its own."""
    counted: Counter[str] = Counter()
    for size, spot in machines:
        if sku := skus.get(size.lower()):
            counted.update(dict.fromkeys((SPOT,) if spot else (sku.family, TOTAL), sku.vcpus))
    return counted


def _own(arm: Arm, settings: Settings) -> list[tuple[str, bool]]:
    """The stack's existing nodes and builder. A builder of another image is deleted only after the new one is made.

    Another user's stack may have the same name, and machines of the same names: its group's tags say so.
    """
    wanted = {name(settings.stack, naming.node(index)) for index in range(settings.nodes)}
    if settings.image == "bake":
        wanted.add(name(settings.stack, f"builder-{key(settings)[:12]}"))
    groups = [group for group in listing.groups(arm, settings.stack) if naming.owns(settings, group["tags"])]
    paths = [f"{group['id']}/providers/Microsoft.Compute/virtualMachines" for group in groups]
    return [
        (item["properties"]["hardwareProfile"]["vmSize"], item["properties"].get("priority") == "Spot")
        for path in paths
        for item in arm.every(path, MACHINES)
        if item["name"].lower() in wanted and item["location"].lower() == region(settings)
    ]
