"""Checks that EC2's vCPU limits leave room for the stack's nodes and for the builder of its image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from infra.clouds import naming
from infra.clouds.aws import api, machine_types
from infra.clouds.aws.findings import Unfit, judged
from infra.clouds.aws.image import bakes, builder_type
from infra.clouds.aws.names import region
from infra.clouds.finding import Finding
from infra.config.settings import Settings

QUOTAS = {False: "L-1216C47A", True: "L-34B43A08"}
"""Service Quotas codes of the vCPU limits of the standard families (A, C, D, H, I, M, R, T, Z): on demand, Spot."""
STANDARD = "acdhimrtz"


def findings(settings: Settings) -> Iterator[Finding]:
    """Findings for the nodes and for the builder, which is never Spot. Beside on-demand nodes it is added to them.

    The first `up` stops the builder before it launches nodes, but a bake after a changed bootstrap runs beside nodes.
    """
    name, spot = machine_types.name_of(settings), settings.cloud.spot
    look = f"https://{region(settings)}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas"

    def quota(check: str, spot: bool, who: str, machines: Counter[str]) -> Finding:
        return judged(check, f"{look}/{QUOTAS[spot]}")(_quota)(settings, spot, who, machines)

    nodes, machines = f"{settings.nodes} nodes", Counter({name: settings.nodes})
    bakes_one = bakes(settings) and name in machine_types.TYPES  # `up` refuses an unknown type, so nothing is baked
    builder = builder_type(settings) if bakes_one else ""
    if name[0] not in STANDARD:
        yield Finding("quota", "undecided", f"{name} is of no standard family", look)
    elif builder and not spot:
        yield quota("quota", False, f"{nodes} and the image's builder ({builder}) need", machines + Counter([builder]))
    else:
        yield quota("quota", spot, f"{nodes} need", machines)
        if builder:
            yield quota("builder", False, f"the image's builder ({builder}) needs", Counter([builder]))


def _quota(settings: Settings, spot: bool, who: str, machines: Counter[str]) -> str:
    """Compare the vCPUs of these machines with what the limit leaves beside others' machines."""
    where, code, ec2 = region(settings), QUOTAS[spot], api.client("ec2", region(settings))
    with api.explain("the vCPU limit"):
        quotas = api.client("service-quotas", where)
        limit = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]
        needed, used = _vcpus(ec2, machines), _vcpus(ec2, _others(ec2, settings, spot))
    market = "Spot" if spot else "On-Demand"
    usage = f"{who} {needed} vCPUs; the {market} limit is {limit:.0f}, others use {used}"
    if needed + used > limit:
        raise Unfit(
            usage,
            f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} "
            f"--desired-value {needed + used} --region {where}",
        )
    return usage


def _others(ec2: Any, settings: Settings, spot: bool) -> Counter[str]:
    """Machines of the standard families, by type, that run in the same market (Spot or not), without this stack's."""
    return Counter(
        item["InstanceType"]
        for item in api.instances(ec2, api.RUNNING)
        if (item.get("InstanceLifecycle") == "spot") == spot
        and item["InstanceType"][0] in STANDARD
        and not naming.owns(settings, api.tags(item))
    )


def _vcpus(ec2: Any, machines: Counter[str]) -> int:
    """By each type's default: EC2 does not say whether the limit counts threads that are switched off."""
    if not machines:
        return 0
    listed = api.pages(ec2, "describe_instance_types", "InstanceTypes", InstanceTypes=list(machines))
    return sum(machines[item["InstanceType"]] * int(item["VCpuInfo"]["DefaultVCpus"]) for item in listed)
