"""Checks that EC2's vCPU limits leave room for the stack's nodes and for the builder of its image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.clouds import naming
from infra.clouds.aws import api, eks, machine_types
from infra.clouds.aws.findings import Unfit, judged
from infra.clouds.aws.image import bakes, builder_type
from infra.clouds.aws.names import region
from infra.clouds.aws.pcluster_config import HEAD, of_queue
from infra.clouds.finding import Finding
from infra.config.settings import Settings


@dataclass(frozen=True)
class Limit:
    """One of EC2's vCPU limits: a set of families shares it."""

    families: str
    """First letters of the families' names."""
    on_demand: str
    """Service Quotas code of the limit on demand."""
    spot: str
    """That for Spot. P5 and newer P families count in others, which are not in this table: undecided."""
    what: str

    def code(self, spot: bool) -> str:
        """Service Quotas code of the limit for these machines."""
        return self.spot if spot else self.on_demand

    def counts(self, type_: str, spot: bool) -> bool:
        """Whether machines of this type count in it."""
        return type_[0] in self.families and not (spot and type_.startswith(("p5", "p6")))


LIMITS = (
    Limit("acdhimrtz", "L-1216C47A", "L-34B43A08", "standard"),
    Limit("p", "L-417A185B", "L-7212CCBC", "P"),
    Limit("gv", "L-DB2E81BA", "L-3819A6DF", "G and VT"),
)
"""From Service Quotas' list of EC2: running on-demand Standard, P, G and VT instances, and Spot requests of each."""


def limit_of(type_: str, spot: bool) -> Limit | None:
    """The limit in which machines of a type count; None: one that is not in the table."""
    return next((limit for limit in LIMITS if limit.counts(type_, spot)), None)


def findings(settings: Settings) -> Iterator[Finding]:
    """Findings for the nodes and for the builder, which is never Spot. It is added to nodes of the same limit.

    The first `up` stops the builder before it launches nodes, but a bake after a changed bootstrap runs beside nodes.
    """
    name, spot = machine_types.name_of(settings), settings.cloud.spot
    look = f"https://{region(settings)}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas"

    def quota(check: str, limit: Limit, spot: bool, who: str, machines: Counter[str]) -> Finding:
        return judged(check, f"{look}/{limit.code(spot)}")(_quota)(settings, limit, spot, who, machines)

    count = of_queue(settings).nodes
    nodes, machines = f"{count} nodes", Counter({name: count})
    bakes_one = bakes(settings) and name in machine_types.choice(settings).types  # `up` refuses an unknown type
    builder = builder_type(settings) if bakes_one else ""
    own = limit_of(name, spot)
    if own is None:
        yield Finding("quota", "undecided", f"{name} counts in a limit that is not known here", look)
    elif builder and not spot and own.counts(builder, spot):
        both = machines + Counter([builder])
        yield quota("quota", own, False, f"{nodes} and the image's builder ({builder}) need", both)
        builder = ""
    else:
        yield quota("quota", own, spot, f"{nodes} need", machines)
    if count != settings.nodes:
        yield quota("head", LIMITS[0], False, f"the head ({HEAD.name}) needs", Counter([HEAD.name]))
    if settings.cluster == eks.CLUSTER:
        system = Counter({eks.SYSTEM.name: eks.SYSTEM_NODES})
        yield quota("system", LIMITS[0], False, f"{eks.SYSTEM_NODES} system nodes ({eks.SYSTEM.name}) need", system)
    if builder and (limit := limit_of(builder, False)):
        yield quota("builder", limit, False, f"the image's builder ({builder}) needs", Counter([builder]))


def _quota(settings: Settings, limit: Limit, spot: bool, who: str, machines: Counter[str]) -> str:
    """Compare the vCPUs of these machines with what the limit leaves beside others' machines."""
    where, code, ec2 = region(settings), limit.code(spot), api.client("ec2", region(settings))
    with api.explain("the vCPU limit"):
        quotas = api.client("service-quotas", where)
        most = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]
        needed, used = _vcpus(ec2, machines), _vcpus(ec2, _others(ec2, settings, limit, spot))
    market = "Spot" if spot else "On-Demand"
    whose = "" if limit is LIMITS[0] else f" of {limit.what} instances"
    usage = f"{who} {needed} vCPUs; the {market} limit{whose} is {most:.0f}, others use {used}"
    if needed + used > most:
        raise Unfit(
            usage,
            f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} "
            f"--desired-value {needed + used} --region {where}",
        )
    return usage


def _others(ec2: Any, settings: Settings, limit: Limit, spot: bool) -> Counter[str]:
    """Machines that count in the limit, by type, that run in the same market (Spot or not), without this stack's."""
    return Counter(
        item["InstanceType"]
        for item in api.instances(ec2, api.RUNNING)
        if (item.get("InstanceLifecycle") == "spot") == spot
        and limit.counts(item["InstanceType"], spot)
        and not naming.owns(settings, api.tags(item))
    )


def _vcpus(ec2: Any, machines: Counter[str]) -> int:
    """By each type's default: EC2 does not say whether the limit counts threads that are switched off."""
    if not machines:
        return 0
    listed = api.pages(ec2, "describe_instance_types", "InstanceTypes", InstanceTypes=list(machines))
    return sum(machines[item["InstanceType"]] * int(item["VCpuInfo"]["DefaultVCpus"]) for item in listed)
