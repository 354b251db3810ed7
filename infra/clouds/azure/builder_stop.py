"""Stops the builder: wait until it has sealed itself and switched off, then deallocate it.

A `poweroff` alone leaves the machine billed. It is deallocated and not deleted, because the next `refresh` would drop a
deleted builder from the state, and the `up` after that would make and run a new one for nothing. Its disk is still
billed (machine_types.BUILDER_DISK_GB, part of the bill) and its few vCPUs count against the quota.

It stops before the snapshot, not after the image: the snapshot needs a disk that nothing writes to, and an image
version takes up to an hour, for which the machine need not be paid.
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
"""Timeout in seconds for the builder to seal itself and switch off."""


class StopError(OperationError):
    """The builder was not sealed; no image may be made from it."""


class StopProvider(OnceProvider):
    """Waits in create until the machine is off, then deallocates it."""

    machine = "incarnation"

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Wait for the sealed machine to be off, then deallocate it. Raises StopError, with the machine stopped."""
        name, machine = props["name"], RunningMachine(props["machine"], operation.CancellationWatch().check)
        again = f"bake again: pulumi up --replace '**::{name}'"

        def off() -> bool:
            state = machine.power()
            if state == "deallocated":  # by somebody else, or by an earlier `up` that failed here
                raise StopError(f"{name} is off, and there is no proof that it was sealed; {again}")
            return state == "stopped"

        try:
            machine.until(f"{name} sealed and off", SEALING, off)
        except (ArmError, UsageError, operation.Cancelled) as error:
            raise StopError(f"{error}\n{stop_after_failure(machine.id)}; {again}") from None
        machine.deallocate()
        return CreateResult(id_=f"{machine.id}/stopped", outs=props)


class Stopped(Resource, module="azure", name="Stopped"):
    """A machine that has switched itself off and been deallocated."""

    machine: pulumi.Output[str]

    def __init__(
        self,
        resource_name: str,
        opts: pulumi.ResourceOptions,
        *,
        name: str,
        machine: pulumi.Input[str],
        incarnation: pulumi.Input[str],
    ) -> None:
        """`name`: the machine's logical name. `machine`: its ARM id. `incarnation`: changes when it is replaced."""
        inputs = {"name": name, "machine": machine, "incarnation": incarnation}
        super().__init__(StopProvider(), resource_name, inputs, opts)
