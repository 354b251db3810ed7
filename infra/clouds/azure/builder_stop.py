"""The builder's end: sealed, switched off by itself, then deallocated, so that nothing of it runs.

Deallocated, not deleted: the machine stays in Pulumi's state as it is, so that the next `up`, `refresh` and `destroy`
see what is there. A builder that was deleted behind Pulumi's back is gone at the next `refresh`, and the `up` after
it would make and run a new one for nothing. What is left costs its disk (machine_types.BUILDER_DISK_GB, which the
bill has), and counts against the quota with the few vCPUs that a builder has. A `poweroff` alone would go on to be
billed. It ends before the snapshot, not after the image: a snapshot of a disk that nothing writes to is whole, and an
image version takes up to an hour, for which nobody should pay a machine.
"""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource

from infra.clouds.azure.arm import ArmError
from infra.clouds.azure.running_machine import RunningMachine, stop_after_failure
from infra.clouds.dynamic_provider import OnceProvider
from infra.errors import OperationError, UsageError
from infra.state import operation

SEALING = 900.0
"""Seconds for the builder to seal itself and switch off."""


class StopError(OperationError):
    """A builder that was not sealed: no image may be made of it."""


class StopProvider(OnceProvider):
    """Create waits until the machine is off, then deallocates it."""

    machine = "incarnation"

    def create(self, props: dict[str, Any]) -> CreateResult:
        name = props["name"]
        machine = RunningMachine(props["machine"], operation.Watch().check)
        anew = f"bake anew: pulumi up --replace '**::{name}'"

        def off() -> bool:
            state = machine.power()
            if state == "deallocated":  # by somebody else, or by an `up` that failed here
                raise StopError(f"{name} is off, and there is no proof that it was sealed; {anew}")
            return state == "stopped"

        try:
            machine.until(f"{name} sealed and off", SEALING, off)
        except (ArmError, UsageError, operation.Cancelled) as error:
            raise StopError(f"{error}\n{stop_after_failure(machine.id)}; {anew}") from None
        machine.deallocate()
        return CreateResult(id_=f"{machine.id}/stopped", outs=props)


class Stopped(Resource, module="azure", name="Stopped"):
    """A machine that has switched itself off and is billed no more."""

    machine: pulumi.Output[str]

    def __init__(
        self,
        resource_name: str,
        *,
        name: str,
        machine: pulumi.Input[str],
        incarnation: pulumi.Input[str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        """`name` is the machine's in the program, `machine` its ARM id, `incarnation` what only this one has."""
        inputs = {"name": name, "machine": machine, "incarnation": incarnation}
        super().__init__(StopProvider(), resource_name, inputs, opts)
