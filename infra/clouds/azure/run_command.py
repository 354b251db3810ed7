"""Runs a command once inside a machine, through the Azure agent: no SSH, no key, no inbound port.

Why not pulumi-azure-native's VirtualMachineRunCommandByVirtualMachine: Azure returns a command's output and exit code
only to a GET with $expand=instanceView, which that resource never sends, so neither a node's host key nor the log of a
failed bake could be read from it. And a failed command would stay in the state as partly created: the next `up` would
update it without running it again. A dynamic resource that fails is not in the state, so the next `up` runs it again.
"""

from __future__ import annotations

import re
import time
from typing import Any, TypedDict, Unpack

import pulumi
from pulumi.dynamic import CreateResult, Resource

from infra.clouds.azure.arm import COMPUTE
from infra.clouds.azure.running_machine import RunningMachine, stop_after_failure
from infra.clouds.dynamic_provider import OnceProvider
from infra.errors import OperationError, UsageError
from infra.state import operation

_OVER = ("Succeeded", "Failed", "TimedOut", "Canceled")
_GRACE = 600.0
"""Seconds beyond a command's own timeout for the agent to start it and report its end."""


class RunCommandError(OperationError):
    """A command inside a machine failed. The message has the end of its output."""


def run(machine: RunningMachine, name: str, location: str, script: str, seconds: int) -> str:
    """Run a script as root inside a machine. Returns its last 4 KB of output, which is all that Azure keeps.

    Raises RunCommandError when it fails or takes longer than `seconds`.
    """
    # A new name each time: Azure does not run a command again under an existing name.
    path = f"{machine.id}/runCommands/{name}-{time.time_ns() // 1_000_000_000}"
    properties = {"source": {"script": script}, "timeoutInSeconds": seconds, "asyncExecution": True}
    machine.arm.put(path, COMPUTE, {"location": location, "properties": properties})
    view: dict[str, Any] = {}

    def over() -> bool:
        found = machine.arm.get(path, COMPUTE, **{"$expand": "instanceView"}).get("properties", {})
        view.clear()
        view.update(found.get("instanceView") or {})
        if found.get("provisioningState") == "Failed" and view.get("executionState") not in _OVER:
            raise RunCommandError(f"{name}: the machine's agent could not run it: {view.get('executionMessage', '')}")
        return view.get("executionState") in _OVER

    machine.until(f"{name} on {machine.id.rpartition('/')[2]}", seconds + _GRACE, over)
    output = str(view.get("output") or "").strip()
    if view["executionState"] != "Succeeded" or view.get("exitCode", 0) != 0:
        state = f"{name}: {view['executionState']}, exit code {view.get('exitCode', '?')}"
        raise RunCommandError("\n".join(filter(None, (state, output, str(view.get("error") or "").strip()))))
    return output


class CommandProvider(OnceProvider):
    """Runs the command in create only: a node that has ended or a sealed builder cannot be asked again."""

    machine = "incarnation"

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Run the command; the output is what matches `wanted`. A builder where it fails is stopped."""
        machine = RunningMachine(props["machine"], operation.CancellationWatch().check)
        try:
            if props["builder"]:
                machine.start()  # an earlier `up` may have stopped it; its bootstrap runs again
            output = run(machine, props["name"], props["location"], props["script"], int(props["seconds"]))
            found = re.search(props["wanted"], output)
            if found is None:
                raise RunCommandError(f"{props['name']}: no {props['wanted']} in its output: {output[-400:]}")
        except (OperationError, UsageError) as error:
            if not props["builder"]:
                raise
            stopped = stop_after_failure(machine.id)
            raise RunCommandError(f"{error}\n{stopped}; the next `up` starts it and tries again") from None
        return CreateResult(id_=f"{props['machine']}/{props['name']}", outs={**props, "output": found.group()})


class Inputs(TypedDict):
    """What a Command needs."""

    name: str
    machine: pulumi.Input[str]
    """The machine's ARM id."""
    incarnation: pulumi.Input[str]
    """An id that changes when the machine is replaced."""
    location: str
    script: str
    seconds: int
    wanted: str
    """A pattern that must be found in what the command prints; the resource's `output` is the match."""
    builder: bool
    """Start the machine if it is off, and stop it when the command fails, so that it is not billed further."""


class Command(Resource, module="azure", name="Command"):
    """A command that ran inside a machine, and its output."""

    output: pulumi.Output[str]

    def __init__(self, resource_name: str, opts: pulumi.ResourceOptions, **inputs: Unpack[Inputs]) -> None:
        super().__init__(CommandProvider(), resource_name, {**inputs, "output": None}, opts)
