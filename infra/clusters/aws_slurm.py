"""Slurm on AWS by ParallelCluster: a head, a queue of machines that Slurm starts for jobs, a shared file system."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pulumi

from infra import cloud_config, inventory, user_data
from infra.clouds.aws import (
    access,
    budget,
    capacity,
    data,
    lustre,
    machine_types,
    names,
    network,
    node_script,
    parallel_cluster,
    pcluster_config,
    pcluster_image,
    security,
    zones,
)
from infra.clouds.aws.host_key import HostKey
from infra.clusters import members
from infra.config.settings import Settings
from infra.config.values import SettingsError, check_key_type
from infra.prices import table
from infra.state import stack_id

HEAD = "head"
DATA_GB = 40
"""GB assumed in the bucket."""
LEAST_DISK_GB = 80
"""ParallelCluster's image has some 45 GB, the software 25."""
METRICS = 7
"""Metrics of EC2's detailed monitoring for each machine."""


def check(settings: Settings) -> None:
    """Raise UsageError for settings that ParallelCluster cannot fulfil. Makes no request, changes nothing."""
    cloud_config.read(user_data.BOOTSTRAP)
    zones.check(settings, machine_types.of(settings).name)
    if settings.nodes < 2:
        raise SettingsError("nodes", settings.nodes, "at least 2 with Slurm: the head, and a node of the queue")
    if settings.cloud.public_nodes != "head":
        raise SettingsError("publicNodes", settings.cloud.public_nodes, "head: EFA's nodes have no public address")
    if settings.cloud.disk_gb < LEAST_DISK_GB:
        raise SettingsError(
            "diskGb", settings.cloud.disk_gb, f"at least {LEAST_DISK_GB}: the image has some 45 GB, the software 25"
        )
    capacity.check(settings)
    network.plan(settings)
    check_key_type(settings.public_key, "AWS")
    pcluster_image.check(settings)
    _script(settings)
    parallel_cluster.check_size(settings)
    bill(settings)


def build(settings: Settings) -> pulumi.Output[str]:
    """Declare the cluster; returns its inventory. Raises UsageError, before any declaration, for what AWS lacks."""
    check(settings)
    own = names.declare(settings, stack_id.declare(settings, region=names.region(settings)))
    machine = machine_types.of(settings)
    for type_ in (machine.name, pcluster_config.HEAD.name):
        zones.check_offer(settings, type_, own)
    image = pcluster_image.given(settings, own)
    # The head is of another type, and is in no reservation.
    inside = capacity.given(pcluster_config.of_queue(settings), machine.name, zones.zone(settings))
    made, bucket = _cluster(settings, own, image, inside)
    budget.declare(settings, pulumi.ResourceOptions(provider=own))
    key = HostKey(HEAD, region=names.region(settings), instance=made.instance).host_key
    return pulumi.Output.all(made.public_ip, made.private_ip, key, bucket).apply(
        lambda known: _inventory(settings, *known)
    )


def _cluster(
    settings: Settings, own: Any, image: str | None, inside: capacity.Given | None
) -> tuple[parallel_cluster.Made, pulumi.Output[str]]:
    """Declare network, bucket, file system and the cluster on them; returns the cluster and the bucket's name."""
    opts = pulumi.ResourceOptions(provider=own)
    place = network.declare(settings, builder=False, opts=opts)
    if settings.cloud.flow_logs:
        network.log(settings, place, own, opts)
    groups = security.declare(settings, place, builder=False, opts=opts)
    bucket = data.declare(settings, own, opts)
    shared = lustre.declare(settings, place, groups.nodes, bucket, opts)
    rights = parallel_cluster.rights(settings, bucket, opts)
    service = parallel_cluster.provider(settings, bucket, opts)
    script = _script(settings)
    object_ = parallel_cluster.upload(settings, script, bucket, opts)
    assert place.private is not None
    parts: dict[str, pulumi.Input[Any]] = {
        "head_subnet": place.public.id,
        "queue_subnet": place.private.id,
        "group": groups.nodes.id,
        "key": access.key(settings, opts),
        "file_system": shared.system.id,
        "bucket": bucket.bucket,
        "rights": rights.arn,
        "script": "",
        "image": image,
        "reservation": inside.id if inside else "",
        "group_name": inside.group if inside else "",
    }
    first = names.after(opts, *place.ways_out, *groups.rules, *shared.first, object_, rights)
    token = service.outputs.apply(lambda found: str(found["ServiceToken"]))
    return parallel_cluster.declare(settings, parts, token, node_script.digest(script), first), bucket.bucket


def bill(settings: Settings) -> list[table.PriceLine]:
    """All costs but traffic and requests. The queue's nodes cost only while Slurm runs them."""
    cloud, machine, queue = settings.cloud, machine_types.of(settings).name, settings.nodes - 1

    def line(sku: str, count: float, what: str, *, idle: bool = True) -> table.PriceLine:
        found = table.line("aws", names.region(settings), sku, count, what=what)
        return replace(found, on_demand=not idle)

    spot, market = (", Spot", "/spot") if cloud.spot else ("", "")
    lines = [
        line(pcluster_config.HEAD.name, 1, f"head, {pcluster_config.HEAD.name}"),
        line(f"{machine}{market}", queue, f"queue, {machine}{spot}, while jobs run", idle=False),
        line("gp3-gb-month", pcluster_config.HEAD_DISK_GB, f"disk of the head, {pcluster_config.HEAD_DISK_GB} GB"),
        line("gp3-gb-month", queue * cloud.disk_gb, f"disks of the queue, {cloud.disk_gb} GB each", idle=False),
        line(lustre.SKU, lustre.GB, f"shared file system, {lustre.GB} GB of FSx for Lustre"),
        line("nat-gateway", 1, "NAT gateway, its traffic apart"),
        line("public-ipv4", 2, "public addresses"),
        line("s3-gb-month", DATA_GB, f"bucket, {DATA_GB} GB reckoned"),
        # ParallelCluster makes it for the names of the queue's nodes, unless Dns/DisableManagedDns is set.
        line("route53-hosted-zone-month", 1, "hosted zone in Route 53, billed by whole months"),
    ]
    if cloud.monitoring:
        lines.append(line("cloudwatch-metric-month", METRICS, "metrics of the head"))
        lines.append(line("cloudwatch-metric-month", queue * METRICS, "metrics of the queue", idle=False))
    return lines


def _script(settings: Settings) -> str:
    return node_script.render(settings, machine_types.of(settings), pcluster_config.SHARED_DIR)


def _inventory(settings: Settings, public_ip: str, private_ip: str, host_key: str, bucket: str) -> str:
    """The inventory as JSON: the head, and the queue that Slurm fills."""
    machine, head, lines = machine_types.of(settings), pcluster_config.HEAD, bill(settings)
    busy = table.total(lines) - table.idle(lines)
    node = inventory.Node(
        name=HEAD,
        role="head",
        private_ip=private_ip,
        ssh_host=public_ip,
        host_key=host_key,
        **members.facts(head),
    )
    queue = inventory.Queue(
        name=pcluster_config.QUEUE,
        nodes=settings.nodes - 1,
        node_prefix=pcluster_config.NODE_PREFIX,
        hourly_usd=round(busy / (settings.nodes - 1), 4),
        **members.facts(machine),
    )
    cluster = inventory.SshCluster(
        name=settings.stack,
        nodes=(node,),
        launcher="slurm",
        ssh_user=node_script.USER,
        identity_file=str(settings.identity_file or ""),
        shared_dir=pcluster_config.SHARED_DIR,
        data_url=f"s3://{bucket}",
        hourly_usd=round(table.idle(lines), 4),
        queue=queue,
    )
    return inventory.to_json(cluster)
