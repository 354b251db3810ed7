"""Lists a stack's resources that its state does not have: `python -m infra.clouds.audit STACK [--sweep ...]`.

Prints a JSON list of live_resource.LiveResource: everything that exists and whose owner is not in `known`; with --sweep
these are removed, and the list is what was removed. `known`: a JSON list of the state's resources, on `local` their
names, in a cloud their ids. `state`: the outputs of the state's resource `stack-id`, {"stack_id", "locations"}; what
has another stack's id is listed as not `ours`, and never removed. A `local` stack is found by its name, whatever its
file contains; with --local the file is not read. If the file is broken and this machine has nothing of the stack, the
audit cannot know where to look: exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from infra.clouds import sdk
from infra.clouds.live_resource import LiveResource
from infra.clouds.local import orphans as local
from infra.config import stack_file
from infra.config.keys import value
from infra.config.kinds import CLUSTERS
from infra.config.settings import Settings, check_stack
from infra.errors import OperationError, UsageError, prints_json
from infra.state import stack_record
from infra.state.ownership import Claim, Location


def cloud_settings(stack: str) -> Settings | None:
    """The settings of a stack in a cloud; None for a local one, and for one without a file.

    Raises UsageError for a cloud stack's file with a bad value; and for a file that does not say where the stack is,
    unless something of it is on this machine.
    """
    check_stack(stack)
    if not stack_file.path_of(stack).exists():
        return None
    try:
        cluster = value(stack_file.read(stack), "cluster")
    except UsageError:
        with suppress(OperationError, OSError):  # no stack can be on this machine: no Linux, no `ip`
            if local.find(stack):
                return None
        raise
    return stack_file.settings_to_find(stack) if CLUSTERS[cluster].name else None


def claim_of(stack: str, owner: str, state: Mapping[str, Any]) -> Claim:
    """What the user owns, according to the state and to their own record."""
    check_stack(stack)
    record = stack_record.read(stack)
    ids = {str(state.get("stack_id") or ""), record.id if record else ""} - {""}
    locations = [Location.read(entry) for entry in state.get("locations") or []]
    locations += [entry for entry in (record.locations if record else ()) if entry not in locations]
    return Claim(stack, owner, frozenset(ids), tuple(locations))


def _where(stack: str, state: Mapping[str, Any], is_local: bool) -> tuple[Settings | None, Claim]:
    """The settings of a stack in a cloud, or None for one on this machine; and the user's claim.

    Raises UsageError for a local stack without root: another user would find nothing, and believe it.
    """
    settings = None if is_local else cloud_settings(stack)
    claim = claim_of(stack, settings.cloud.owner if settings else "", state)
    if settings is None and os.geteuid() != 0:
        raise UsageError("the machines of a local stack belong to root: run this with sudo")
    return settings, claim


def find(stack: str, state: Mapping[str, Any], *, is_local: bool = False) -> list[LiveResource]:
    """Everything with the stack's name. `is_local`: only on this machine, without reading its file."""
    settings, claim = _where(stack, state, is_local)
    if settings is None:
        return local.find(stack, claim.ids)
    found: list[LiveResource] = _orphans(settings).find(settings, claim=claim)
    return found


def sweep(
    stack: str, known: Collection[str], state: Mapping[str, Any], *, delete_data: bool, is_local: bool = False
) -> list[LiveResource]:
    """Remove the user's own resources whose owner is not in `known`; returns what was removed."""
    settings, claim = _where(stack, state, is_local)
    if settings is None:
        return local.sweep(stack, known, claim.ids)
    swept: list[LiveResource] = _orphans(settings).sweep(settings, known, delete_data=delete_data, claim=claim)
    return swept


def _orphans(settings: Settings) -> ModuleType:
    """The orphans module of the stack's cloud: find(settings, claim=...), sweep(settings, known, ..., claim=...)."""
    return sdk.load(f"infra.clouds.{settings.facts.name}.orphans")


def unknown(live_resources: list[LiveResource], known: Collection[str]) -> list[LiveResource]:
    """Those whose owner is not in `known`. Ids are compared ignoring case, which Azure varies."""
    return [live for live in live_resources if not live.is_in(known)]


@prints_json
def main() -> list[dict[str, Any]]:
    """List, sweep or forget as the command line says; returns the resources, for JSON."""
    parser = argparse.ArgumentParser(prog="python -m infra.clouds.audit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("--local", action="store_true", help="the stack is on this machine, whatever its file says")
    parser.add_argument("--known", default="[]", help="the resources in the state, as a JSON list")
    parser.add_argument("--state", default="{}", help="the stack's id and where it has been, by the state, as JSON")
    parser.add_argument("--forget", action="store_true", help="remove the user's record of the stack")
    parser.add_argument("--sweep", action="store_true", help="remove what is found")
    parser.add_argument("--delete-data", action="store_true", help="buckets too that have something in them")
    args = parser.parse_args()
    known, state = set(json.loads(args.known)), json.loads(args.state)
    found: list[LiveResource] = []
    if args.forget:
        stack_record.forget(args.stack)
    elif args.sweep:
        found = sweep(args.stack, known, state, delete_data=args.delete_data, is_local=args.local)
    else:
        found = unknown(find(args.stack, state, is_local=args.local), known)
    return [vars(live) for live in found]


if __name__ == "__main__":
    sys.exit(main())
