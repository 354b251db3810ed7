"""A command run once inside a machine, through the machine's agent: no SSH, no key, no way in from outside.

Why not pulumi-azure-native's VirtualMachineRunCommandByVirtualMachine. Azure gives a command's output and exit code
only to a GET with $expand=instanceView, which that resource never sends: its instance_view is empty, so neither a
node's host key nor the log's tail of a bake that failed could be had from it. And a command that failed would stay in
the state as half made, to be updated by the next `up` to what it is already, without running again. A dynamic resource
that failed is not there, so the next `up` runs the command again.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource

from infra.clouds.azure.arm import COMPUTE
from infra.clouds.azure.running_machine import RunningMachine, stop_after_failure
from infra.clouds.dynamic_provider import OnceProvider
from infra.errors import OperationError, UsageError
from infra.state import operation

_OVER = ("Succeeded", "Failed", "TimedOut", "Canceled")
_GRACE = 600.0
"""Seconds beyond a command's own time-out for the agent to begin, and to report the end."""


class CommandError(OperationError):
    """A command inside a machine that failed: what it said last."""


def run(machine: RunningMachine, name: str, location: str, script: str, seconds: int) -> str:
    """Run a script as root inside a machine and return what it printed: the last 4 KB, more Azure does not keep.

    Raises CommandError when it fails or takes longer than `seconds`.
    """
    # Another name each time: a command of a name that is there already is not run again.
    path = f"{machine.id}/runCommands/{name}-{time.time_ns() // 1_000_000_000}"
    properties = {"source": {"script": script}, "timeoutInSeconds": seconds, "asyncExecution": True}
    machine.arm.put(path, COMPUTE, {"location": location, "properties": properties})
    view: dict[str, Any] = {}

    def over() -> bool:
        found = machine.arm.get(path, COMPUTE, **{"$expand": "instanceView"}).get("properties", {})
        view.clear()
        view.update(found.get("instanceView") or {})
        if found.get("provisioningState") == "Failed" and view.get("executionState") not in _OVER:
            raise CommandError(f"{name}: the machine's agent could not run it: {view.get('executionMessage', '')}")
        return view.get("executionState") in _OVER

    machine.until(f"{name} on {machine.id.rpartition('/')[2]}", seconds + _GRACE, over)
    output = str(view.get("output") or "").strip()
    if view["executionState"] != "Succeeded" or view.get("exitCode", 0) != 0:
        said = "\n".join(part for part in (output, str(view.get("error") or "").strip()) if part)
        raise CommandError(f"{name}: {view['executionState']}, exit code {view.get('exitCode', '?')}\n{said}".rstrip())
    return output


class CommandProvider(OnceProvider):
    """Create runs the command. A node that has ended cannot be asked again, nor a sealed builder."""

    machine = "incarnation"

    def create(self, props: dict[str, Any]) -> CreateResult:
        machine = RunningMachine(props["machine"], operation.Watch().check)
        try:
            if props["builder"]:
                machine.start()  # an `up` before this one may have stopped it; its bootstrap runs again
            output = run(machine, props["name"], props["location"], props["script"], int(props["seconds"]))
            found = re.search(props["wanted"], output)
            if found is None:
                raise CommandError(
                    f"{props['name']}: what it printed has nothing like {props['wanted']}: {output[-400:]}"
                )
        except (OperationError, UsageError) as error:
            if props["builder"]:
                raise CommandError(
                    f"{error}\n{stop_after_failure(machine.id)}; the next `up` starts it for another try"
                ) from None
            raise
        return CreateResult(id_=f"{props['machine']}/{props['name']}", outs={**props, "output": found.group()})


class Command(Resource, module="azure", name="Command"):
    """A command that was run inside a machine, and what it printed."""

    output: pulumi.Output[str]

    def __init__(
        self,
        resource_name: str,
        *,
        name: str,
        machine: pulumi.Input[str],
        incarnation: pulumi.Input[str],
        location: str,
        script: str,
        seconds: int,
        wanted: str = "(?s).*",
        builder: bool = False,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """`machine` is its ARM id, `incarnation` what only this machine of that id has; `wanted` a pattern that the
        output must hold, and that `output` is the match of. A `builder` is started when it is off, and stopped when
        the command fails: it must not go on to be billed."""
        inputs = {
            "name": name,
            "machine": machine,
            "incarnation": incarnation,
            "location": location,
            "script": script,
            "seconds": seconds,
            "wanted": wanted,
            "builder": builder,
            "output": None,
        }
        super().__init__(CommandProvider(), resource_name, inputs, opts)
