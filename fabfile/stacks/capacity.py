"""Run `pulumi up`, and explain a failure for want of capacity or quota in the cloud.

The reason is in Pulumi's event log, written beside its live display (`pulumi up --event-log FILE`, a flag that its
help lists only with PULUMI_DEBUG_COMMANDS): one JSON event a line; the errors are in `diagnosticEvent`s.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.stacks import pulumi_cli

_ROOM = "the cloud has no free machine of this type there now"
_QUOTA = "the account's own limit is too low"
_SPOT = "no Spot machine is available there now"
_OFFER = "this account may not use this machine type there"
_CODES_OF = {
    # AWS: EC2's error codes, https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
    # Azure: https://learn.microsoft.com/azure/virtual-machines/allocation-failure
    _ROOM: "InsufficientInstanceCapacity InsufficientHostCapacity InsufficientCapacity "
    "InsufficientReservedInstanceCapacity AllocationFailed ZonalAllocationFailed OverconstrainedAllocationRequest "
    "OverconstrainedZonalAllocationRequest",
    _SPOT: "SpotMaxPriceTooLow UnfulfillableCapacity",
    _QUOTA: "MaxSpotInstanceCountExceeded VcpuLimitExceeded InstanceLimitExceeded QuotaExceeded",
    _OFFER: "Unsupported SkuNotAvailable",
}
CODES = {code: why for why, codes in _CODES_OF.items() for code in codes.split()}
# `Unsupported` is a common word, so only in EC2's form. Azure's OperationNotAllowed does not only mean a quota.
_CODE = re.compile(rf"\b({'|'.join(code for code in CODES if code != 'Unsupported')})\b|api error (Unsupported):")
_AZURE_QUOTA = re.compile(r"OperationNotAllowed.*exceeding approved .*Cores quota", re.DOTALL)


@dataclass(frozen=True)
class Shortage:
    """One resource that the cloud had no capacity or quota for."""

    resource: str
    code: str
    message: str  # the cloud's own message, in one line

    @property
    def why(self) -> str:
        """What the code means."""
        return CODES[self.code]


@dataclass(frozen=True)
class Update:
    """How a `pulumi up` ended."""

    code: int
    began: bool  # whether it went past its preview and the question: something may have been changed
    shortages: tuple[Shortage, ...] = ()  # what the cloud had no capacity or quota for


def up(argv: list[str], stack: str, facts: Mapping[str, Any]) -> Update:
    """Run `pulumi up` with its live display; after a failure for want of capacity print advice at the end."""
    with tempfile.TemporaryDirectory(prefix="trainyard-") as directory:  # mode 700: readable by this user only
        log = Path(directory) / "events.json"
        variables = {"PULUMI_DEBUG_COMMANDS": "true", **pulumi_cli.plugins(facts["cloud"])}
        code = pulumi_cli.follow([*argv, "--event-log", str(log)], **variables)
        events = log.read_text(errors="replace") if log.exists() else ""
    if facts["cloud"] and code not in (0, pulumi_cli.INTERRUPTED):
        found = shortages(events)
        for line in advice(found, stack, facts):
            say(line)
        return Update(code, began(events), tuple(found))
    return Update(code, began(events))


def began(log: str) -> bool:
    """Whether an event log has a step of the update itself; the preview's steps are marked as planning."""
    kinds = ("resourcePreEvent", "resOutputsEvent", "resOpFailedEvent")
    steps = [event[kind] for event in _events(log) for kind in kinds if kind in event]
    return any(not step.get("planning") for step in steps)


def shortages(log: str) -> list[Shortage]:
    """The capacity failures in an event log, each resource once. A torn last line is skipped."""
    found: dict[str, Shortage] = {}
    for event in _events(log):
        diagnostic = event.get("diagnosticEvent") or {}
        if diagnostic.get("severity") != "error":
            continue
        message = " ".join(str(diagnostic.get("message", "")).split())
        match = _CODE.search(message)
        code = (match[1] or match[2]) if match else "QuotaExceeded" if _AZURE_QUOTA.search(message) else ""
        if match or code:
            name = str(diagnostic.get("urn", "")).rpartition("::")[2] or "the stack"
            start = match.start() if match else max(message.find("OperationNotAllowed"), 0)
            found.setdefault(name, Shortage(name, code, message[start : start + 400]))
    return list(found.values())


def _events(log: str) -> Iterable[dict[str, Any]]:
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line that was being written when pulumi was killed
        if isinstance(event, dict):
            yield event


def advice(found: list[Shortage], stack: str, facts: Mapping[str, Any]) -> list[str]:
    """The lines that end a failed `up`: what is missing, where the machine type is offered, and what to do."""
    if not found:
        return []
    lines = [f"no capacity: {entry.resource}: {entry.code}: {entry.why}" for entry in found]
    lines.append(f"  in the cloud's words: {found[0].message}")
    reasons = {entry.why for entry in found}
    if reasons & {_ROOM, _SPOT, _OFFER}:
        elsewhere = f"pulumi config set {facts['offered_by']} ... --stack {stack}"
        lines += [
            _offers(stack, facts),
            f"  elsewhere: {elsewhere}, then fab up (it makes all nodes again)",
            "  or later: run fab up again, it continues where it stopped; or with fewer nodes, or another instanceType",
        ]
    if _SPOT in reasons:
        lines.append(f"  or on demand: pulumi config set spot false --stack {stack}")
    if _QUOTA in reasons:
        lines.append(f"  the limit, and how to raise it: fab check --account --stack {stack}")
    lines.append(f"  what is up already costs money; to remove it: fab destroy --stack {stack}")
    return lines


def _offers(stack: str, facts: Mapping[str, Any]) -> str:
    what = f"{facts['offered_by']}s"
    try:
        found = pulumi_cli.answer("clouds.account", stack, "--offers")
    except Exit as error:
        return f"  which {what} offer {facts['type']} is not known: {error.message}"
    return f"  {facts['type']} is offered in these {what}: {', '.join(found) or 'none'} (you asked in {facts['place']})"
