"""Runs a command inside a machine through Systems Manager: authenticated by AWS, without SSH or a key.

A bake polls a few hundred times, so one failed poll must not fail the bake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from infra.clouds.aws import api
from infra.errors import OperationError

REGISTERED = 600.0
"""Seconds within which a machine must register with Systems Manager; two or three minutes are usual."""
COMMAND = 900.0
"""Timeout of a command in seconds, delivery included."""
POLL = 2.0
"""Seconds between polls."""
PATIENCE = 300.0
"""Seconds for which a failed call is retried, unless the caller sets a limit."""
_NOT_YET = ("InvalidInstanceID.NotFound", "InvocationDoesNotExist")
"""Error codes for what was created a moment ago and is not visible yet."""
_UNDER_WAY = ("Pending", "InProgress", "Delayed", "Cancelling")


class SsmCommandError(OperationError):
    """Systems Manager does not reach a machine, or a command failed in it."""


@dataclass(frozen=True)
class ManagedMachine:
    """A machine, reached through Systems Manager."""

    region: str
    instance: str
    name: str
    check: Callable[[], None]
    """Called between polls; raises when the operation was cancelled."""

    def __str__(self) -> str:
        return f"{self.name} ({self.instance})"

    def state(self) -> str:
        """pending (also if EC2 does not know it yet), running, stopping, stopped, shutting-down or terminated."""
        asked = self._ask("ec2", "describe_instances", unknown=_NOT_YET, InstanceIds=[self.instance])
        found = [machine for reservation in asked.get("Reservations", []) for machine in reservation["Instances"]]
        return str(found[0]["State"]["Name"]) if found else "pending"

    def start(self) -> None:
        """Boot the instance if it is stopped, and wait until its agent has registered."""
        while (state := self.state()) == "stopping":
            self._wait()
        if state == "stopped":
            self._ask("ec2", "start_instances", InstanceIds=[self.instance])
        self.await_agent()

    def stop(self) -> None:
        """Stop the instance if it runs, even after a cancellation; then only its disk is billed."""
        heedless = replace(self, check=lambda: None)
        if heedless.state() in ("pending", "running"):
            heedless._ask("ec2", "stop_instances", InstanceIds=[self.instance])

    def await_agent(self, timeout: float = REGISTERED) -> None:
        """Wait until its agent has registered. Raises SsmCommandError at the timeout, or if the machine has ended."""
        until = time.monotonic() + timeout
        filters = [{"Key": "InstanceIds", "Values": [self.instance]}]
        while True:
            known = self._ask("ssm", "describe_instance_information", until=until, Filters=filters)
            if any(entry["PingStatus"] == "Online" for entry in known["InstanceInformationList"]):
                return
            if (state := self.state()) not in ("pending", "running"):
                raise SsmCommandError(f"{self} is {state}, and was expected to run")
            if time.monotonic() > until:
                raise SsmCommandError(
                    f"{self} did not register with Systems Manager within {timeout:.0f} s: is amazon-ssm-agent in its "
                    "image, and has it a way out? What it printed while it booted: "
                    f"aws ec2 get-console-output --latest --region {self.region} --instance-id {self.instance}"
                )
            self._wait()

    def run(self, script: str, timeout: float = COMMAND) -> str:
        """Run a script with /bin/sh as root; returns its output. On failure raises SsmCommandError with the output."""
        request: dict[str, Any] = {"DocumentName": "AWS-RunShellScript", "InstanceIds": [self.instance]}
        request["Parameters"] = {"commands": [script], "executionTimeout": [str(int(timeout))]}
        sent = self._ask("ssm", "send_command", **request, TimeoutSeconds=max(30, int(timeout)))
        command = {"CommandId": sent["Command"]["CommandId"], "InstanceId": self.instance}
        until = time.monotonic() + timeout + 60
        while True:
            ended = self._ask("ssm", "get_command_invocation", until=until, unknown=_NOT_YET, **command)
            if ended.get("Status", "Pending") not in _UNDER_WAY:
                break
            if time.monotonic() > until:
                raise SsmCommandError(f"{self}: a command did not end within {timeout:.0f} s")
            self._wait()
        output = str(ended["StandardOutputContent"])
        if ended["Status"] != "Success":
            reason = (ended["StandardErrorContent"] or output).strip()
            raise SsmCommandError(f"{self}: a command ended as {ended['StatusDetails']}: {reason}")
        return output

    def _ask(
        self, service: str, operation: str, *, until: float | None = None, unknown: tuple[str, ...] = (), **asked: Any
    ) -> dict[str, Any]:
        """AWS's response; {} for an error code in `unknown`. Repeats what may pass until the time `until` (default:
        PATIENCE seconds from now); raises SsmCommandError for all other failures."""
        until = time.monotonic() + PATIENCE if until is None else until
        while True:
            try:
                answer: dict[str, Any] = getattr(api.client(service, self.region), operation)(**asked)
                return answer
            except api.FAILURES as error:
                if api.code(error) in unknown:
                    return {}
                if not api.passes(error) or time.monotonic() > until:
                    raise SsmCommandError(f"{self}: {operation}: {api.one_line(error)}") from error
            self._wait()

    def _wait(self) -> None:
        self.check()
        time.sleep(POLL)
