"""Between cluster and network: when Pulumi destroys, the cluster goes, this removes what it left, the network goes.

A network cannot be deleted while an interface or a security group is in it, and Pulumi knows none of those that EKS and
its controllers make (infra.clouds.aws.eks_left). `fab destroy` audits and sweeps as well, but only after Pulumi, which
would have waited a quarter of an hour for the network and failed.
"""

from __future__ import annotations

import time
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource

from infra.clouds.aws import api, removal
from infra.clouds.aws.eks_left import LEFT
from infra.clouds.aws.names import partition, region
from infra.clouds.aws.place import AccountRegion
from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.naming import unique
from infra.config.settings import Settings
from infra.errors import say
from infra.state.ownership import Claim

SETTLES_S = 60.0
"""Seconds without anything new: a load balancer's interfaces, say, become free some time after it has gone."""


def sweep(props: dict[str, Any]) -> list[str]:
    """Remove what the cluster left; returns it in words. Raises OperationError for what could not be removed."""
    claim = Claim(props["stack"], props["owner"], frozenset({props["stack_id"]}))
    place = AccountRegion(claim, props["region"], props["account"], props["partition"])
    swept: list[str] = []
    end = time.monotonic() + SETTLES_S
    while True:
        found = _once(place)
        swept += found
        for what in found:
            say(f"removed what EKS left: {what}")
        if not found and (not swept or time.monotonic() > end):
            return swept
        if found:
            end = time.monotonic() + SETTLES_S
        time.sleep(removal.POLL_S)


def _once(place: AccountRegion) -> list[str]:
    """Remove everything that is there now."""
    swept: list[str] = []
    for kind in LEFT:
        with api.explain(f"what EKS left, {kind.name}"):
            found = list(kind.listed(place))
            names = [one.id or one.owner for one in found]
            if kind.prepare:
                kind.prepare(place, names)
            for one, name in zip(found, names, strict=True):
                kind.remove(place, name)
                swept.append(f"{kind.name} {one.what}")
    return swept


class SweptProvider(PlainProvider):
    """Makes nothing; its removal is what it is for."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Makes no request: what is remembered are the names by which the rest is found later."""
        return CreateResult(id_=f"{unique(props['stack'], props['stack_id'])}/{props['region']}", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Never a change: what the cluster left is found by the names that it was made with."""
        return DiffResult(changes=False)

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Remove the rest, and look again until nothing new has come for SETTLES_S seconds. OperationError if some of
        it cannot be removed; then the network stays as well."""
        sweep(props)


class Swept(Resource, module="aws", name="Swept"):
    """What the cluster leaves, removed once the cluster is gone. The cluster depends on it, and it on the network."""

    def __init__(self, settings: Settings, account: str, opts: pulumi.ResourceOptions) -> None:
        inputs = {"stack": settings.stack, "stack_id": settings.stack_id, "owner": settings.cloud.owner}
        inputs |= {"region": region(settings), "account": account, "partition": partition(settings)}
        super().__init__(SweptProvider(), "swept", inputs, opts)
