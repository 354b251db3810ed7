"""The builder's end: sealed, switched off by itself, then deallocated, so that nothing of it runs.

Deallocated, not deleted: the machine stays in Pulumi's state as it is, so that the next `up`, `refresh` and `destroy`
see what is there. A builder that was deleted behind Pulumi's back is gone at the next `refresh`, and the `up` after
it would make and run a new one for nothing. What is left costs its disk (infra.azure.types.BUILDER_DISK_GB, which the
bill has), and counts against the quota with the few vCPUs that a builder has. A `poweroff` alone would go on to be
billed. It ends before the snapshot, not after the image: a snapshot of a disk that nothing writes to is whole, and an
image version takes up to an hour, for which nobody should pay a machine.
"""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource

from infra import operation
from infra.azure import arm
from infra.provider import PlainProvider

SEALING = 900.0
"""Seconds for the builder to seal itself and switch off."""


class StopProvider(PlainProvider):
    """Create waits until the machine is off, then deallocates it; nothing is there to be updated or deleted."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        machine = props["machine"]
        client = arm.Arm(check=operation.Watch().check)
        try:
            client.until(
                f"{machine.rpartition('/')[2]} sealed and off",
                SEALING,
                lambda: client.power(machine) in ("stopped", "deallocated"),
            )
        finally:
            arm.Arm().deallocate(machine)  # also one that would not be sealed, and when the `up` was interrupted
        return CreateResult(id_=f"{machine}/stopped", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = olds["incarnation"] != news["incarnation"]
        return DiffResult(changes=changed, replaces=["incarnation"] if changed else [], delete_before_replace=False)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        return ReadResult(id_=id_, outs=props)

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Nothing: the machine is another resource."""


class Stopped(Resource, module="azure", name="Stopped"):
    """A machine that has switched itself off and is billed no more."""

    machine: pulumi.Output[str]

    def __init__(
        self,
        resource_name: str,
        *,
        machine: pulumi.Input[str],
        incarnation: pulumi.Input[str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        """`machine` is its ARM id, `incarnation` what only this machine of that id has."""
        super().__init__(StopProvider(), resource_name, {"machine": machine, "incarnation": incarnation}, opts)
