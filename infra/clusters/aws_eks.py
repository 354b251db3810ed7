"""Kubernetes on AWS by EKS: workers with GPUs and EFA, a shared file system, a repository of images, the training
operator. Jobs go through the API; there is no SSH."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pulumi

from infra import inventory
from infra.clouds.aws import (
    budget,
    capacity,
    data,
    eks,
    eks_addons,
    eks_api,
    eks_cluster,
    eks_end,
    eks_network,
    eks_nodes,
    eks_objects,
    eks_roles,
    eks_sweep,
    lustre,
    machine_types,
    names,
    network,
    registry,
    security,
    zones,
)
from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.prices import table
from infra.state import stack_id

DATA_GB = 40
"""GB assumed in the bucket."""
IMAGES_GB = 20
"""GB assumed in the repository: two images of the training job."""
LEAST_DISK_GB = 80
"""EKS's image has some 20 GB, and one image of the training job 10 to 20."""
METRICS = 7
"""Metrics of EC2's detailed monitoring for each machine."""
SUMS = table.Sums("once its nodes with GPUs have ended", "with all of them", full_at_once=True)


def check(settings: Settings) -> None:
    """Raise UsageError for settings that EKS cannot fulfil. Makes no request, changes nothing."""
    cloud = settings.cloud
    zones.check(settings, machine_types.of(settings).name)
    eks_network.check(settings)
    fixed = {
        "image": (settings.image, "bake", "bake, which here means EKS's own image of the nodes"),
        "baseImage": (cloud.base_image, "", "empty on aws-eks: nothing is baked"),
        "publicNodes": (cloud.public_nodes, "head", "head, which here means none: the nodes are behind a NAT gateway"),
        "idleMinutes": (settings.idle_minutes, 0, "0 on aws-eks: only maxHours ends its nodes"),
    }
    for key, (given, wanted, allowed) in fixed.items():
        if given != wanted:
            raise SettingsError(key, given, allowed)
    if cloud.disk_gb < LEAST_DISK_GB:
        raise SettingsError("diskGb", cloud.disk_gb, f"at least {LEAST_DISK_GB}: container images are large")
    if cloud.spot and cloud.capacity_reservation.startswith("cr-"):
        allowed = "empty with spot: Spot nodes cannot be put into one"
        raise SettingsError("capacityReservation", cloud.capacity_reservation, allowed)
    bill(settings)


def build(settings: Settings) -> pulumi.Output[str]:
    """Declare the cluster; returns its inventory. Raises UsageError, before any declaration, for what AWS lacks."""
    check(settings)
    own = names.declare(settings, stack_id.declare(settings, region=names.region(settings)))
    machine = machine_types.of(settings)
    for type_ in (machine.name, eks.SYSTEM.name):
        zones.check_offer(settings, type_, own)
    second = eks_network.other_zone(settings, own)
    given = capacity.given(settings, machine.name, zones.zone(settings))
    opts = pulumi.ResourceOptions(provider=own)
    place = eks_network.declare(settings, second, opts)
    if settings.cloud.flow_logs:
        network.log(settings, place, own, opts)
    groups = security.declare(settings, place, builder=False, opts=opts, ssh=False)
    bucket = data.declare(settings, own, opts)
    shared = lustre.declare(settings, place, groups.nodes, bucket, opts)
    images = registry.declare(settings, opts)
    stand = [*place.ways_out, *groups.rules, *shared.rules]
    swept = eks_sweep.Swept(settings, eks_roles.account(own), pulumi.ResourceOptions(depends_on=stand))
    plane = eks_cluster.declare(settings, place, [*stand, swept], own)
    addons = eks_addons.before_nodes(settings, plane, own)
    ground = eks_nodes.Ground(own, place, groups.nodes, plane, addons)
    made = eks_nodes.declare(settings, ground, given)
    _inside(settings, plane, made, shared, bucket, own)
    budget.declare(settings, opts)
    return pulumi.Output.all(plane.endpoint, plane.authority, images.repository_url, bucket.bucket).apply(
        lambda known: _inventory(settings, *known)
    )


def _inside(
    settings: Settings,
    plane: eks_cluster.ControlPlane,
    made: eks_nodes.Nodes,
    shared: lustre.Lustre,
    bucket: Any,
    own: Any,
) -> None:
    """What is in the cluster, once it has nodes; and their end."""
    eks_end.Ends(settings, made.scaling_group, pulumi.ResourceOptions())
    ready = [
        *eks_addons.on_nodes(settings, plane, shared.system, made.system, own),
        *eks_addons.jobs(settings, plane, bucket, own),
    ]
    system = shared.system
    objects = pulumi.Output.all(system.id, system.dns_name, system.mount_name).apply(
        lambda known: json.dumps([*eks_objects.objects(settings, *known), *eks_objects.operator()])
    )
    where: dict[str, pulumi.Input[str]] = {"cluster": plane.cluster.name, "region": names.region(settings)}
    where |= {"endpoint": plane.endpoint, "authority": plane.authority, "objects": objects}
    eks_api.Objects(where, pulumi.ResourceOptions(depends_on=[*ready, made.gpus, *plane.usable, *shared.first]))


def bill(settings: Settings) -> list[table.PriceLine]:
    """All costs but traffic, requests and logs. The nodes with GPUs cost from their start to maxHours."""
    cloud, machine, nodes = settings.cloud, machine_types.of(settings).name, settings.nodes

    def line(sku: str, count: float, what: str, *, idle: bool = True) -> table.PriceLine:
        found = table.line("aws", names.region(settings), sku, count, what=what)
        return replace(found, on_demand=not idle)

    spot, market = (", Spot", "/spot") if cloud.spot else ("", "")
    system, disk = eks.SYSTEM_NODES, eks.SYSTEM_DISK_GB
    lines = [
        line(eks.SKU, 1, "control plane"),
        line(f"{machine}{market}", nodes, f"nodes with GPUs, {machine}{spot}", idle=False),
        line("gp3-gb-month", nodes * cloud.disk_gb, f"their disks, {cloud.disk_gb} GB each", idle=False),
        line(eks.SYSTEM.name, system, f"system nodes, {eks.SYSTEM.name}"),
        line("gp3-gb-month", system * disk, f"disks of the system nodes, {disk} GB each"),
        line(lustre.SKU, lustre.GB, f"shared file system, {lustre.GB} GB of FSx for Lustre"),
        line("nat-gateway", 1, "NAT gateway, its traffic apart"),
        line("public-ipv4", 1, "its public address"),
        line(eks.KEY_SKU, 1, "key of the secrets"),
        line(eks.IMAGES_SKU, IMAGES_GB, f"container images, {IMAGES_GB} GB reckoned"),
        line("s3-gb-month", DATA_GB, f"bucket, {DATA_GB} GB reckoned"),
    ]
    if cloud.monitoring:
        lines.append(line("cloudwatch-metric-month", system * METRICS, "metrics of the system nodes"))
        lines.append(line("cloudwatch-metric-month", nodes * METRICS, "metrics of the nodes with GPUs", idle=False))
    return lines


def _inventory(settings: Settings, endpoint: str, authority: str, repository: str, bucket: str) -> str:
    """The inventory as JSON."""
    machine = machine_types.of(settings)
    cluster = inventory.KubeCluster(
        name=settings.stack,
        cluster_name=eks.cluster_name(settings),
        region=names.region(settings),
        endpoint=endpoint,
        certificate_authority=authority,
        authentication="eks",
        namespace=eks.NAMESPACE,
        service_account=eks.SERVICE_ACCOUNT,
        image=repository,
        workers=settings.nodes,
        gpus_per_worker=machine.gpus,
        gpu_architecture=machine.gpu_architecture,
        gpu_memory_gb=machine.gpu_memory_gb,
        nvlink_gb_per_s=machine.nvlink_gb_per_s,
        efa_per_worker=machine.efa_cards,
        efa_gbps=machine.efa_gbps,
        cores_per_worker=machine.cores,
        memory_gb=machine.memory_gb,
        shared_dir=eks.SHARED_DIR,
        shared_claim=eks.CLAIM,
        data_url=f"s3://{bucket}",
        hourly_usd=round(table.total(bill(settings)), 4),
    )
    return inventory.to_json(cluster)
