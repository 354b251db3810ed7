"""A node's public host key, read over an authenticated channel, so that SSH can be strict from the first connection."""

from __future__ import annotations

import re
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource

from infra.clouds.aws import ssm
from infra.clouds.dynamic_provider import OnceProvider
from infra.state import operation

# Wait for the key: cloud-init makes it before it starts sshd, but the SSM agent may start earlier.
_READ = r"""
f=${TRAINYARD_PREFIX:-}/etc/ssh/ssh_host_ed25519_key.pub
n=0
while [ ! -s "$f" ] && [ $n -lt 120 ]; do sleep 1; n=$((n + 1)); done
cut -d ' ' -f 1,2 "$f"
"""
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]+")


def read(machine: ssm.ManagedMachine) -> str:
    """`ssh-ed25519 AAAA...`. Raises SsmCommandError if the machine has no such key."""
    machine.await_agent()
    output = machine.run(_READ).strip()
    if not _KEY.fullmatch(output):
        raise ssm.SsmCommandError(f"{machine} has no ed25519 host key: {output[:200]!r}")
    return output


class HostKeyProvider(OnceProvider):
    """Create reads the key; another instance has another one."""

    machine = "instance"
    delete_before_replace = True

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Wait for the machine's agent, then read the key by it. SsmCommandError if either fails."""
        check = operation.CancellationWatch().check
        machine = ssm.ManagedMachine(props["region"], props["instance"], props["node"], check)
        return CreateResult(id_=props["instance"], outs={**props, "host_key": read(machine)})


class HostKey(Resource, module="aws", name="HostKey"):
    """A node's host key, for known_hosts."""

    host_key: pulumi.Output[str]

    def __init__(
        self, node: str, *, region: str, instance: pulumi.Input[str], after: pulumi.Resource | None = None
    ) -> None:
        """`after`: what the node needs, beside itself, to reach Systems Manager."""
        inputs = {"node": node, "region": region, "instance": instance, "host_key": None}
        opts = pulumi.ResourceOptions(depends_on=[after] if after else None)
        super().__init__(HostKeyProvider(), f"{node}-host-key", inputs, opts)
