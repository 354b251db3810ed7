"""The gate of a golden image: nothing is made of a builder that is not baked, by its own bootstrap's word.

`Baked` waits for the bootstrap's record in the builder; `Sealed` runs bootstrap/seal.sh in it. Both go through Systems
Manager. When one of them fails, the builder is stopped before the failure is told: it costs its disk, and the next
`up` boots it and lets its bootstrap try again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource

from infra.clouds.aws import ssm
from infra.clouds.dynamic_provider import OnceProvider
from infra.errors import OperationError, UsageError, visible
from infra.state import operation

BAKE = 3600.0
"""Seconds for a whole bake; a step that hangs is ended by the bootstrap itself, well before."""
POLL = 15.0
"""Seconds between two looks, each of which is a command."""
END_MINUTES = 180
"""So long after each boot a builder that everybody forgot powers itself off: EC2 stops it, and it costs its disk."""
# cloud-init runs it before the bus is there that `shutdown +180` would need, and before a timer may start.
# cloud-init runs this before sysinit.target, which a timer waits for by itself, while systemd-run waits for the timer
# whatever --no-block says: without its default dependencies the boot would stand still here.
END = (
    "systemd-run --no-block --unit=trainyard-builder-end --property=DefaultDependencies=no"
    f" --timer-property=DefaultDependencies=no --on-active={END_MINUTES}min systemctl poweroff -i"
)
"""What sets that, in the builder's user data: it does not depend on anybody who waits for the bake."""

# Standard sh, as Systems Manager runs it. The prefix is the tests'; a record of an earlier boot does not count.
_LOOK = r"""
p=${TRAINYARD_PREFIX:-}
s=$p/var/lib/trainyard
echo "boot $(awk '$1 == "btime" { print $2 }' /proc/stat)"
for record in ready failed; do
    if [ -e "$s/$record.json" ]; then printf '%s ' "$record"; tr -d '\n' <"$s/$record.json"; echo; fi
done
if [ -e "$s/progress.jsonl" ]; then sed 's/^/step /' "$s/progress.jsonl"; fi
"""
_ENSURE_END = f"systemctl is-active trainyard-builder-end.timer || shutdown -P +{END_MINUTES}"
_SEAL = "exec bash /opt/trainyard/bootstrap/seal.sh"


class BakeError(OperationError):
    """A bake that failed: names the step and the end of its log."""


def builder(props: dict[str, Any]) -> ssm.Machine:
    """The machine of a resource's inputs."""
    return ssm.Machine(props["region"], props["instance"], "builder", operation.Watch().check)


@contextmanager
def stopped_on_failure(machine: ssm.Machine) -> Iterator[None]:
    """Stop the builder first, whatever error ends the bake: no builder keeps running."""
    try:
        yield
    except BaseException as error:
        try:
            machine.stop()
        except (OperationError, UsageError) as failed:
            left = f"the builder {machine.instance} could not be stopped and costs money: {failed}"
            raise BakeError(f"{error}\n{left}") from error
        raise


def await_record(machine: ssm.Machine, timeout: float = BAKE) -> None:
    """Follow the bootstrap until its record is there. Raises BakeError with the end of its log when it has failed."""
    machine.start()
    machine.await_agent()
    machine.run(_ENSURE_END)
    began, told, last = time.monotonic(), 0, "nothing: cloud-init has not started the bootstrap"
    while True:
        machine.check()
        boot, records, steps = _read(machine.run(_LOOK))
        for step in steps[told:]:
            if step["state"] == "done":
                print(visible(f"image: {step['step']} {step['seconds']:.0f} s"), flush=True)
        told, last = len(steps), f"step {steps[-1]['step']}" if steps else last
        # A clock that is set right during the boot may move by a second or two.
        fresh = {kind: record for kind, record in records.items() if record["time"] > boot - 5}
        if "failed" in fresh:
            raise BakeError(_reason(fresh["failed"]))
        if "ready" in fresh:
            return
        if time.monotonic() - began > timeout:
            raise BakeError(f"{machine.name}: no record after {timeout:.0f} s; the last was {last}")
        time.sleep(POLL)


def _read(output: str) -> tuple[float, dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """(when it booted, its records, the steps so far) from what _LOOK prints."""
    boot, records, steps = 0.0, {}, []
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        if word == "boot":
            boot = float(rest)
        elif word == "step":
            if rest.endswith("}"):  # the last one may be half written
                steps.append(json.loads(rest))
        elif word in ("ready", "failed"):
            records[word] = json.loads(rest)
    return boot, records, steps


def _reason(failed: dict[str, Any]) -> str:
    tail = "".join(f"\n    {line}" for line in failed["log"])
    return f"{failed['node']}: step {failed['step']} failed: {failed['reason']}; the end of its log:{tail}"


class BakedProvider(OnceProvider):
    """Create waits for the builder's ready record."""

    machine = "instance"

    def create(self, props: dict[str, Any]) -> CreateResult:
        machine = builder(props)
        with stopped_on_failure(machine):
            await_record(machine)
        return CreateResult(id_=props["instance"], outs=props)


class SealedProvider(OnceProvider):
    """Create takes out of the builder what is its own."""

    machine = "instance"

    def create(self, props: dict[str, Any]) -> CreateResult:
        machine = builder(props)
        with stopped_on_failure(machine):
            machine.start()
            machine.await_agent()
            machine.run(_SEAL)
        return CreateResult(id_=props["instance"], outs=props)


class Baked(Resource, module="aws", name="Baked"):
    """A builder whose bootstrap has said that it is ready."""

    def __init__(self, name: str, *, region: str, instance: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__(BakedProvider(), name, {"region": region, "instance": instance}, opts)


class Sealed(Resource, module="aws", name="Sealed"):
    """A builder that has nothing of its own left."""

    def __init__(self, name: str, *, region: str, instance: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__(SealedProvider(), name, {"region": region, "instance": instance}, opts)
