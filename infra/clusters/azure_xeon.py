"""Xeon nodes on Azure: network, storage, the golden image, and N machines made from it."""

from __future__ import annotations

import pulumi

from infra import cloud_config, inventory, user_data
from infra.clouds.azure import access, budget, data, flow_logs, image, machine_types, names, network, nodes
from infra.clusters import members
from infra.config.settings import Settings
from infra.config.values import SettingsError, check_key_type
from infra.prices import table
from infra.prices.table import PriceLine
from infra.state import stack_id

ZONES = ("1", "2", "3")
RESERVED = ("microsoft", "windows")
"""Words that Azure forbids in the name of anything with a host name of its own, such as a storage account."""
DATA_GB = 20
"""GB assumed in the container: the published token set has 17 GB."""


def check(settings: Settings) -> None:
    """Raise UsageError for what Azure would refuse, or what has no price. Makes no request, changes nothing."""
    machine_types.of(settings)
    image.key(settings)
    cloud_config.read(user_data.BOOTSTRAP)
    cloud = settings.cloud
    if any(word in settings.stack.replace("-", "") for word in RESERVED):
        raise SettingsError("stack", settings.stack, f"without {' and '.join(RESERVED)}: Azure refuses them in names")
    if cloud.zone and cloud.zone not in ZONES:
        raise SettingsError("zone", cloud.zone, f"one of {', '.join(ZONES)}, or empty: Azure chooses")
    if not machine_types.BUILDER_DISK_GB <= cloud.disk_gb <= machine_types.MOST_DISK_GB:
        least, most = machine_types.BUILDER_DISK_GB, machine_types.MOST_DISK_GB
        raise SettingsError("diskGb", cloud.disk_gb, f"from {least}, the image's own size, to {most} on Azure")
    if cloud.capacity_reservation:
        raise SettingsError("capacityReservation", cloud.capacity_reservation, "empty on Azure: it is AWS's own")
    check_key_type(settings.public_key, "Azure")
    bill(settings)


def build(settings: Settings) -> pulumi.Output[str]:
    """Declare the cluster; returns its inventory."""
    check(settings)
    warning = machine_types.amx_warning(machine_types.of(settings))
    if warning:
        pulumi.log.warn(warning)
    stack = names.declare(settings, stack_id.declare(settings, region=names.region(settings)))
    net = network.declare(stack)
    store = data.declare(stack, net)
    if settings.cloud.flow_logs:
        flow_logs.declare(stack, net, store)
    own = access.declare(stack, store)
    budget.declare(stack)
    golden = image.declare(stack, net, own)
    made = nodes.declare(stack, net, golden, own)
    keys = pulumi.Output.all(*(node.host_key for node in made))
    public = pulumi.Output.all(*(node.public_ip for node in made))
    known = pulumi.Output.all(keys, public, store.url)
    return known.apply(lambda found: _inventory(settings, made, *found))


def _inventory(settings: Settings, made: list[nodes.Node], keys: list[str], public: list[str | None], url: str) -> str:
    """The inventory as JSON. A node without a public address is reached through the head."""
    all_public = settings.cloud.public_nodes == "all"
    each = [
        {"private_ip": node.private_ip, "ssh_host": address or "", "host_key": key}
        for node, key, address in zip(made, keys, public, strict=True)
    ]
    found = members.of(machine_types.of(settings), each)
    cluster = inventory.SshCluster(
        name=settings.stack,
        nodes=found,
        identity_file=str(settings.identity_file or ""),
        jump_host="" if all_public or len(found) == 1 else found[0].address,
        data_url=url,
        hourly_usd=round(table.total(bill(settings)), 4),
    )
    return inventory.to_json(cluster)


def bill(settings: Settings) -> list[PriceLine]:
    """The hourly costs of a running cluster, at list prices. The builder, which runs for minutes, is not included."""
    cloud, size, count = settings.cloud, machine_types.of(settings), settings.nodes
    public = count if cloud.public_nodes == "all" else 1
    lines = [
        _line(settings, f"{size.name}/spot" if cloud.spot else size.name, count, "nodes"),
        _line(settings, f"managed-disk-{machine_types.tier(size.storage, cloud.disk_gb)}", count, "their disks"),
        _line(settings, "public-ip-standard", public, "public addresses of nodes"),
    ]
    if network.has_nat_gateway(settings):
        lines.append(_line(settings, "nat-gateway", 1, "NAT gateway, without its traffic"))
        lines.append(_line(settings, "public-ip-standard", 1, "its address"))
    if settings.image == "bake":
        lines += _bill_of_image(settings)
    return [*lines, _line(settings, "blob-gb-month", DATA_GB, f"blobs, as if {DATA_GB} GB with old versions")]


def _bill_of_image(settings: Settings) -> list[PriceLine]:
    """What remains of a bake; an upper bound, as if the disk were full."""
    gb = machine_types.BUILDER_DISK_GB
    tier = machine_types.tier("StandardSSD_LRS", gb)
    lines = [
        _line(settings, f"managed-disk-{tier}", 1, "disk of the builder, which is off"),
        _line(settings, "snapshot-gb-month", gb, "snapshot, at most"),
        _line(settings, "gallery-version-gb-month", gb * image.replicas(settings), "golden image, at most"),
    ]
    if not network.has_nat_gateway(settings):
        lines.append(_line(settings, "public-ip-standard", 1, "address of the builder"))
    return lines


def _line(settings: Settings, sku: str, count: float, what: str) -> PriceLine:
    return table.line("azure", names.region(settings), sku, count, what=what)
