"""A command inside a machine, through Systems Manager: authenticated by AWS, without SSH and without a key.

boto3 finds credentials and endpoints as AWS's own command does (AWS_PROFILE, AWS_ENDPOINT_URL, ...).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.exceptions

from infra.errors import OperationError

REGISTERED = 600.0
"""Seconds until a machine must have called Systems Manager; two or three minutes are usual."""
COMMAND = 900.0
"""Seconds that a command may take, the delivery included."""
POLL = 2.0
OUTPUT_CHARACTERS = 24_000
"""AWS keeps no more of what a command says."""
_UNDER_WAY = ("Pending", "InProgress", "Delayed", "Cancelling")


class CommandError(OperationError):
    """A machine that Systems Manager does not reach, or a command that did not end well in it."""


@dataclass(frozen=True)
class Machine:
    """A machine as Systems Manager sees it."""

    region: str
    instance: str
    name: str
    """What people call it."""
    check: Callable[[], None]
    """Raises when nobody wants the result any more."""
    poll: float = POLL

    @property
    def _ssm(self) -> Any:
        return boto3.client("ssm", region_name=self.region)

    @property
    def _ec2(self) -> Any:
        return boto3.client("ec2", region_name=self.region)

    def state(self) -> str:
        """pending, running, stopping, stopped, shutting-down or terminated."""
        found = self._ec2.describe_instances(InstanceIds=[self.instance])["Reservations"]
        state: str = found[0]["Instances"][0]["State"]["Name"]
        return state

    def start(self) -> None:
        """Boot it again if it is stopped."""
        while (state := self.state()) == "stopping":
            self._wait()
        if state == "stopped":
            self._ec2.start_instances(InstanceIds=[self.instance])

    def stop(self) -> None:
        """Stop it if it runs; its disk stays, and is all that it still costs."""
        if self.state() in ("pending", "running"):
            self._ec2.stop_instances(InstanceIds=[self.instance])

    def await_agent(self, timeout: float = REGISTERED) -> None:
        """Until its agent has registered. Raises CommandError where that does not happen, or the machine has ended."""
        began = time.monotonic()
        client, filters = self._ssm, [{"Key": "InstanceIds", "Values": [self.instance]}]
        while True:
            known = client.describe_instance_information(Filters=filters)["InstanceInformationList"]
            if any(entry["PingStatus"] == "Online" for entry in known):
                return
            state = self.state()
            if state not in ("pending", "running"):
                raise CommandError(f"{self.name} ({self.instance}) is {state}, and was expected to run")
            if time.monotonic() - began > timeout:
                raise CommandError(
                    f"{self.name} ({self.instance}) did not register with Systems Manager within {timeout:.0f} s: is "
                    f"amazon-ssm-agent in its image, and has it a way out? What it printed while it booted: "
                    f"aws ec2 get-console-output --latest --region {self.region} --instance-id {self.instance}"
                )
            self._wait()

    def run(self, script: str, timeout: float = COMMAND) -> str:
        """Run a script for /bin/sh as root; what it printed. Raises CommandError, with what it said, when it fails."""
        client = self._ssm
        sent = client.send_command(
            InstanceIds=[self.instance],
            DocumentName="AWS-RunShellScript",
            Parameters={"commands": [script], "executionTimeout": [str(int(timeout))]},
            TimeoutSeconds=max(30, int(timeout)),
        )["Command"]["CommandId"]
        began = time.monotonic()
        while True:
            ended = self._ended(client, sent)
            if ended is not None:
                break
            if time.monotonic() - began > timeout + 60:
                raise CommandError(f"{self.name} ({self.instance}): a command did not end within {timeout:.0f} s")
            self._wait()
        if ended["Status"] != "Success":
            said = (ended["StandardErrorContent"] or ended["StandardOutputContent"]).strip()
            raise CommandError(f"{self.name} ({self.instance}): a command ended as {ended['StatusDetails']}: {said}")
        output: str = ended["StandardOutputContent"]
        return output

    def _ended(self, client: Any, command: str) -> dict[str, Any] | None:
        """What became of a command; None while it is under way."""
        try:
            found: dict[str, Any] = client.get_command_invocation(CommandId=command, InstanceId=self.instance)
        except botocore.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "InvocationDoesNotExist":
                raise
            return None  # AWS knows of a command a moment after it has taken it
        return None if found["Status"] in _UNDER_WAY else found

    def _wait(self) -> None:
        self.check()
        time.sleep(self.poll)


def plain(error: Exception) -> str:
    """AWS's own words for a failure, without the name of the SDK's class."""
    return str(error).removeprefix("An error occurred ")
