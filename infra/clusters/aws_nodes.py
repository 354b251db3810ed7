"""What every kind of cluster of nodes on AWS is made of: a network in one zone, the golden image, N instances close
together, a bucket and a budget. aws_xeon and aws_gpu say which types their nodes can have."""

from __future__ import annotations

import pulumi

from infra import cloud_config, inventory, user_data
from infra.clouds.aws import budget, capacity, foundation, image, machine_types, names, network, nodes, zones
from infra.clusters import members
from infra.config.settings import Settings
from infra.config.values import SettingsError, check_key_type
from infra.prices import table
from infra.state import stack_id

IMAGE_GB = {"native": 20, "ipex": 20, "cuda": 30}
"""GB in an image's snapshot, by its profile; blocks that were never written cost nothing."""
DATA_GB = 40
"""GB assumed in the bucket: the published data set has 17 GB, a checkpoint of its model 1.5 GB."""

METRICS = 4
"""Metrics that bootstrap/aws-xeon/monitor.py sends for each node: CPU, memory, network in and out."""


def check(settings: Settings) -> None:
    """Raise UsageError for settings that AWS cannot fulfil. Makes no request, changes nothing."""
    cloud_config.read(user_data.BOOTSTRAP)
    zones.check(settings, machine_types.of(settings).name)
    network.plan(settings)
    check_key_type(settings.public_key, "AWS")
    image.check(settings)
    if settings.cloud.disk_gb < image.disk_gb(settings):
        least = f"at least {image.disk_gb(settings)}, the size of its image, with profile {settings.profile}"
        raise SettingsError("diskGb", settings.cloud.disk_gb, least)
    capacity.check(settings)
    nodes.check_user_data(image.builder_data(settings), "the builder")
    bill(settings)


def build(settings: Settings) -> pulumi.Output[str]:
    """Declare the cluster; returns its inventory. Raises UsageError, before any declaration, for what AWS lacks."""
    check(settings)
    own = names.declare(settings, stack_id.declare(settings, region=names.region(settings)))
    machine = machine_types.of(settings)
    zones.check_offer(settings, machine.name, own)
    given = None if image.bakes(settings) else image.given(settings, own)
    inside = capacity.given(settings, machine.name, zones.zone(settings))
    if warning := machine_types.without_amx(machine):
        pulumi.log.warn(warning)
    under = foundation.declare(settings, own, builder=given is None)
    budget.declare(settings, pulumi.ResourceOptions(provider=own))
    made = nodes.declare(settings, given or image.bake(settings, under), under, inside)
    facts = pulumi.Output.all(*[pulumi.Output.all(node.public_ip, node.host_key) for node in made])
    return pulumi.Output.all(facts, under.bucket.bucket).apply(lambda known: _inventory(settings, known[0], known[1]))


def bill(settings: Settings) -> list[table.PriceLine]:
    """All costs but traffic, requests and the builder's half hour."""
    cloud, region = settings.cloud, names.region(settings)
    public = sum(network.is_public(settings, index) for index in range(settings.nodes))

    def line(sku: str, count: float, what: str) -> table.PriceLine:
        return table.line("aws", region, sku, count, what=what)

    name = machine_types.of(settings).name
    lines = [
        line(f"{name}/spot" if cloud.spot else name, settings.nodes, f"{name}{', Spot' if cloud.spot else ''}"),
        line("gp3-gb-month", settings.nodes * cloud.disk_gb, f"disks of the nodes, {cloud.disk_gb} GB each"),
    ]
    if network.has_private(settings):
        public += 1
        lines.append(line("nat-gateway", 1, "NAT gateway, its traffic apart"))
    lines.append(line("public-ipv4", public, "public addresses"))
    if image.bakes(settings):
        gb = IMAGE_GB[settings.profile]
        lines.append(line("gp3-gb-month", image.disk_gb(settings), "disk of the stopped builder"))
        lines.append(line("ebs-snapshot-gb-month", gb, f"snapshot of the image, {gb} GB reckoned"))
    if cloud.monitoring:
        lines.append(line("cloudwatch-metric-month", settings.nodes * METRICS, f"metrics, {METRICS} of each node"))
        lines.append(line("cloudwatch-request", settings.nodes * 60, "sending them, once a minute"))
    lines.append(line("s3-gb-month", DATA_GB, f"bucket, {DATA_GB} GB reckoned"))
    return lines


def _inventory(settings: Settings, facts: list[list[str]], bucket: str) -> str:
    """The inventory as JSON, from each node's [public address, host key]."""
    each = []
    for index, (public_ip, host_key) in enumerate(facts):
        ssh_host = public_ip if network.is_public(settings, index) else ""
        each.append({"private_ip": network.address(settings, index), "ssh_host": ssh_host, "host_key": host_key})
    found = members.of(machine_types.of(settings), each)
    cluster = inventory.SshCluster(
        name=settings.stack,
        nodes=found,
        identity_file=str(settings.identity_file or ""),
        jump_host=found[0].ssh_host if network.has_private(settings) else "",
        data_url=f"s3://{bucket}",
        hourly_usd=round(table.total(bill(settings)), 4),
    )
    return inventory.to_json(cluster)
