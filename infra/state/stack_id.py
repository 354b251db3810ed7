"""A stack's id: eight random hexadecimal digits that distinguish stacks of the same name.

It comes from the first of these that has it:

1. the state's resource `stack-id`. It is made first, and everything that can be found or removed later depends on it,
   so everybody who shares the state has the same id, on any machine.
2. the user's record (stack_record.py), if the state is empty: written with a new random id before anything is made. So
   a preview shows the id that `up` will use, and a killed first `up` has one too.
3. none, if the state has resources but no id: an early version of Trainyard made it. Such a stack keeps its names.

Not a random resource of Pulumi: it is unknown at the first preview, and so would be all names and tags.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from infra.clouds import sdk
from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.local import owner
from infra.config.settings import Settings
from infra.errors import UsageError
from infra.state import stack_record
from infra.state.ownership import Location

NAME = "stack-id"
"""Logical name of the resource."""
READ_STATE = "pulumi:pulumi:readStackResourceOutputs"
"""Pulumi's own function: the outputs of every resource in a stack's state, available before anything is declared."""
_BEING_WRITTEN = "failed to load checkpoint"
"""Part of the error when Pulumi writes the state while we read it: its file backend writes in place."""
_WRITTEN_S = 5.0
_PAUSE_S = 0.1
_OF_PULUMI = ("pulumi:pulumi:", "pulumi:providers:")


def of_stack(stack: str) -> str:
    """The id of the stack for which this program runs; empty for a stack made before there were ids.

    Raises UsageError if the state cannot be read.
    """
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{stack}"
    deadline = time.monotonic() + _WRITTEN_S
    while True:
        try:
            answer = pulumi.runtime.invoke(READ_STATE, {"stackName": name}).value
        except Exception as error:  # noqa: BLE001 (Pulumi raises plain Exception for a call that the engine refuses)
            if _BEING_WRITTEN in str(error) and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
                continue
            raise UsageError(f"the state of stack {stack} cannot be read: {error}") from None
        return choose(stack, (answer or {}).get("outputs") or {})


def choose(stack: str, state: Mapping[str, Mapping[str, Any]]) -> str:
    """The id, given the state's resources as `{URN: {"type", "outputs"}}`."""
    for urn, resource in state.items():
        if urn.rpartition("::")[2] == NAME:
            return str(resource["outputs"]["stack_id"])
    if any(not str(resource["type"]).startswith(_OF_PULUMI) for resource in state.values()):
        return ""
    return stack_record.reserve(stack)


class StackIdProvider(PlainProvider):
    """Stores the id and every place where the stack has been; for a local stack it also takes the name."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Record the id; a local stack's name is claimed on this machine first."""
        if not props["cloud"]:
            owner.claim(props["stack"], props["stack_id"])
        return CreateResult(id_=props["stack_id"], outs=self._outs(props, []))

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """A change of place, or a local stack whose claim is gone, makes an update."""
        changed = any(olds.get(key) != news.get(key) for key in ("cloud", "region"))
        # The owner record is missing after somebody removed all of a local stack by hand: write it again.
        changed = changed or (not news["cloud"] and owner.read(news["stack"]) is None)
        return DiffResult(changes=changed, replaces=[], delete_before_replace=False)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Nothing outside the state can have changed."""
        return ReadResult(id_=id_, outs=props)

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Add the new place; claim a local stack's name again."""
        if not news["cloud"]:
            owner.claim(news["stack"], id_)
        return UpdateResult(outs=self._outs({**news, "stack_id": id_}, olds.get("locations") or []))

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Keeps the user's record: `fab destroy` removes it once nothing is left of the stack."""
        if not props["cloud"]:
            owner.release(props["stack"], id_)

    def _outs(self, props: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
        locations = list(before)
        if props["cloud"]:  # where this `up` makes the stack; the cloud tells the account
            here = asdict(sdk.load(f"infra.clouds.{props['cloud']}.credentials").location(props["region"]))
            if here not in locations:
                locations.append(here)
        stack_record.remember(props["stack"], props["stack_id"], [Location.read(entry) for entry in locations])
        return {**props, "locations": locations}


class StackId(Resource, module="trainyard", name="StackId"):
    """The stack's id in its state."""

    def __init__(self, settings: Settings, *, region: str = "") -> None:
        """`region`: the cloud region of the stack; empty for a local one."""
        inputs = {
            "stack": settings.stack,
            "stack_id": settings.stack_id,
            "cloud": settings.facts.name if region else "",
            "region": region,
            "locations": None,
        }
        super().__init__(StackIdProvider(), NAME, inputs, pulumi.ResourceOptions())


def declare(settings: Settings, *, region: str = "") -> pulumi.ResourceOptions:
    """Options that make a resource depend on the id, for the first network or provider. Empty without an id."""
    if not settings.stack_id:
        return pulumi.ResourceOptions()
    return pulumi.ResourceOptions(depends_on=[StackId(settings, region=region)])
