"""Gates between the builder and its image: the bootstrap must have recorded success, and the builder must be sealed.

`Baked` waits for the bootstrap's record in the builder; `Sealed` runs bootstrap/seal.sh in it. Both use Systems
Manager. If one fails, the builder is stopped before the error is reported: only its disk is billed, and the next `up`
boots it, which runs its bootstrap again.
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
from infra.user_data import ON_NODE

BAKE = 3600.0
"""Timeout of a whole bake in seconds. The bootstrap itself ends a step that hangs long before."""
POLL = 15.0
"""Seconds between polls; each runs a command in the builder."""
END_MINUTES = 180
"""A builder powers itself off so many minutes after each boot, in case nobody does: EC2 stops it, its disk remains."""
# cloud-init runs this before D-Bus is up, which `shutdown +180` needs, and before sysinit.target, for which a timer
# waits by default. systemd-run waits for the timer despite --no-block: with default dependencies the boot would hang.
END = (
    "systemd-run --no-block --unit=trainyard-builder-end --property=DefaultDependencies=no"
    f" --timer-property=DefaultDependencies=no --on-active={END_MINUTES}min systemctl poweroff -i"
)
"""Sets that timer from the builder's user data, so it works even if nobody waits for the bake."""

# POSIX sh, as Systems Manager runs it. Tests set the prefix. Records of an earlier boot do not count.
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
_CHUNK = 8000
"""Characters of an archive in one command."""
# The settings are cloud-init's to write, and the bootstrap reads them first.
_SETTLED = "cloud-init status --wait >/dev/null || true; test -s /etc/trainyard.env"
_ARCHIVE = "${TRAINYARD_PREFIX:-}/opt/trainyard-bootstrap"
# By Python, which cloud-init brings: not every image has an xz for tar.
_UNPACK = f"""
set -eu
folder=${{TRAINYARD_PREFIX:-}}{ON_NODE}
mkdir -p "$folder"
base64 -d "{_ARCHIVE}" >"{_ARCHIVE}.tar.xz"
python3 -m tarfile -e "{_ARCHIVE}.tar.xz" "$folder"
rm "{_ARCHIVE}" "{_ARCHIVE}.tar.xz"
"""
_START = f"""
systemctl enable {ON_NODE}/trainyard-bootstrap.service && systemctl restart --no-block trainyard-bootstrap
"""
_SEAL = "exec bash /opt/trainyard/bootstrap/seal.sh"


class BakeError(OperationError):
    """A bake failed. The message names the step and has the end of its log."""


@contextmanager
def stopped_on_failure(props: dict[str, Any]) -> Iterator[ssm.ManagedMachine]:
    """The builder that a resource's inputs name. It is stopped on any error, so that none keeps running."""
    machine = ssm.ManagedMachine(props["region"], props["instance"], "builder", operation.CancellationWatch().check)
    try:
        yield machine
    except BaseException as error:
        try:
            machine.stop()
        except (OperationError, UsageError) as failed:
            still_running = f"the builder {machine.instance} could not be stopped and costs money: {failed}"
            raise BakeError(f"{error}\n{still_running}") from error
        raise


def bring(machine: ssm.ManagedMachine, scripts: str) -> None:
    """Bring the bootstrap's scripts (user_data.archive) to the builder and start it: they are too large for user
    data."""
    machine.run(_SETTLED)
    for at in range(0, len(scripts), _CHUNK):
        machine.run(f'printf %s {scripts[at : at + _CHUNK]} {">>" if at else ">"}"{_ARCHIVE}"')
    machine.run(_UNPACK)
    machine.run(_START)


def await_record(machine: ssm.ManagedMachine, timeout: float = BAKE) -> None:
    """Follow the bootstrap until it has recorded success. Raises BakeError with the end of its log if it failed."""
    machine.start()
    machine.run(_ENSURE_END)
    began, printed, last = time.monotonic(), 0, "nothing: cloud-init has not started the bootstrap"
    while True:
        machine.check()
        boot, records, steps = _read(machine.run(_LOOK))
        for step in steps[printed:]:
            if step["state"] == "done":
                print(visible(f"image: {step['step']} {step['seconds']:.0f} s"), flush=True)
        printed, last = len(steps), f"step {steps[-1]['step']}" if steps else last
        # Allow 5 s: setting the clock during the boot may move it by a second or two.
        fresh = {kind: record for kind, record in records.items() if record["time"] > boot - 5}
        if "failed" in fresh:
            raise BakeError(_reason(fresh["failed"]))
        if "ready" in fresh:
            return
        if time.monotonic() - began > timeout:
            raise BakeError(f"{machine.name}: no record after {timeout:.0f} s; the last was {last}")
        time.sleep(POLL)


def _read(output: str) -> tuple[float, dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """(boot time, records by kind, steps so far) from the output of _LOOK."""
    boot, records, steps = 0.0, {}, []
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        if word == "boot":
            boot = float(rest)
        elif word == "step":
            if rest.endswith("}"):  # the last line may be half written
                steps.append(json.loads(rest))
        elif word in ("ready", "failed"):
            records[word] = json.loads(rest)
    return boot, records, steps


def _reason(failed: dict[str, Any]) -> str:
    tail = "".join(f"\n    {line}" for line in failed["log"])
    return f"{failed['node']}: step {failed['step']} failed: {failed['reason']}; the end of its log:{tail}"


class BakedProvider(OnceProvider):
    """Create waits for the bootstrap's success record."""

    machine = "instance"

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Bring the scripts, if they were too large for the user data, and wait for the record. BakeError if the
        bootstrap failed, OperationError if the machine does not answer; either way it is stopped."""
        with stopped_on_failure(props) as machine:
            if scripts := props.get("scripts"):
                machine.start()
                bring(machine, scripts)
            await_record(machine)
        return CreateResult(id_=props["instance"], outs=props)


class SealedProvider(OnceProvider):
    """Create removes from the builder whatever must not be in an image."""

    machine = "instance"

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Start the builder, should it have been stopped, and seal it. OperationError, and then it is stopped."""
        with stopped_on_failure(props) as machine:
            machine.start()
            machine.run(_SEAL)
        return CreateResult(id_=props["instance"], outs=props)


class Baked(Resource, module="aws", name="Baked"):
    """A builder whose bootstrap has succeeded."""

    def __init__(self, name: str, machine: dict[str, pulumi.Input[str]], opts: pulumi.ResourceOptions) -> None:
        """`machine`: region and instance; and scripts, those of the bootstrap if they are not in the user data."""
        super().__init__(BakedProvider(), name, {**machine}, opts)


class Sealed(Resource, module="aws", name="Sealed"):
    """A builder after bootstrap/seal.sh."""

    def __init__(self, name: str, machine: dict[str, pulumi.Input[str]], opts: pulumi.ResourceOptions) -> None:
        """`machine`: region and instance."""
        super().__init__(SealedProvider(), name, {**machine}, opts)
