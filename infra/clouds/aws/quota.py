"""Checks that EC2's vCPU limits leave room for the stack's nodes and for the builder of its image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from infra.clouds.aws import api, machine_types
from infra.clouds.aws.image import bakes, builder_type
from infra.clouds.aws.names import region
from infra.clouds.finding import Finding
from infra.clouds.naming import STACK_TAG
from infra.config.settings import Settings

QUOTAS = {False: "L-1216C47A", True: "L-34B43A08"}
"""Service Quotas codes of the vCPU limits of the standard families (A, C, D, H, I, M, R, T, Z): on demand, Spot."""
STANDARD = "acdhimrtz"


def findings(ec2: Any, settings: Settings, vcpus: int) -> Iterator[Finding]:
    """Findings for the nodes and for the builder, which is never Spot. Beside on-demand nodes it is added to them.

    The first `up` stops the builder before it launches nodes, but a bake after a changed bootstrap runs beside nodes.
    """
    name = settings.cloud.instance_type or machine_types.DEFAULT
    spot, nodes, needed = settings.cloud.spot, f"{settings.nodes} nodes", settings.nodes * vcpus
    if not vcpus or name[0] not in STANDARD:
        look = f"https://{region(settings)}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas"
        yield Finding("quota", "undecided", f"{name} is of no standard family", look)
        return
    if not bakes(settings) or name not in machine_types.TYPES:  # `up` refuses an unknown type, so nothing is baked
        yield _quota("quota", ec2, settings, spot, nodes, needed)
        return
    builder = builder_type(settings)
    try:
        more = _vcpus(ec2, {builder: 1})
    except api.FAILURES as error:
        look = f"aws ec2 describe-instance-types --instance-types {builder}"
        yield Finding("quota", "undecided", f"the builder's vCPUs: {api.one_line(error)}", look)
        return
    if spot:
        yield _quota("quota", ec2, settings, True, nodes, needed)
        yield _quota("builder", ec2, settings, False, f"the image's builder ({builder})", more)
    else:
        yield _quota("quota", ec2, settings, False, f"{nodes} and the image's builder ({builder})", needed + more)


def _quota(check: str, ec2: Any, settings: Settings, spot: bool, who: str, needed: int) -> Finding:
    """Compare `needed` vCPUs with what the limit leaves beside other machines; the stack's own are not counted."""
    where, code = region(settings), QUOTAS[spot]
    look = f"https://{where}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{code}"
    try:
        quotas = api.client("service-quotas", where)
        limit = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]
        used = _used(ec2, settings, spot)
    except api.FAILURES as error:
        return Finding(check, "undecided", f"the vCPU limit: {api.one_line(error)}", look)
    market, verb = "Spot" if spot else "On-Demand", "needs" if who.startswith("the ") else "need"
    said = f"{who} {verb} {needed} vCPUs; the {market} limit is {limit:.0f}, others use {used}"
    if needed + used > limit:
        more = (
            f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} "
            f"--desired-value {needed + used} --region {where}"
        )
        return Finding(check, "failed", said, more)
    return Finding(check, "ok", said)


def _used(ec2: Any, settings: Settings, spot: bool) -> int:
    """vCPUs of the standard families that run in the same market (Spot or not) and are not this stack's.

    Uses each type's default vCPU count: EC2 does not say whether the limit counts threads that are switched off.
    """
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    counts: Counter[str] = Counter()
    for reservation in api.pages(ec2, "describe_instances", "Reservations", Filters=running):
        for item in reservation["Instances"]:
            same = (item.get("InstanceLifecycle") == "spot") == spot and item["InstanceType"][0] in STANDARD
            if same and api.tags(item).get(STACK_TAG) != settings.stack:
                counts[item["InstanceType"]] += 1
    return _vcpus(ec2, counts)


def _vcpus(ec2: Any, counts: Mapping[str, int]) -> int:
    """vCPUs of so many machines of each type."""
    listed = api.pages(ec2, "describe_instance_types", "InstanceTypes", InstanceTypes=list(counts)) if counts else []
    return sum(counts[item["InstanceType"]] * int(item["VCpuInfo"]["DefaultVCpus"]) for item in listed)
