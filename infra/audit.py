"""What of a stack exists outside its state: `python -m infra.audit STACK [--known JSON] [--sweep [--delete-data]]`.

Prints a JSON list of infra.thing.Thing: everything that exists and whose owner is not among the known resources; with
--sweep it is removed first, and the list is what was removed. `known` are a JSON list of the state's resources: on
`local` their names, in a cloud their ids. A `local` stack is found by its name, whatever has become of its file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from types import ModuleType

from infra import extras, stack_file
from infra.errors import OperationError, UsageError
from infra.local import leftovers as local
from infra.settings import CLUSTERS, Settings, check_stack, load
from infra.thing import Thing, to_json


def cloud_settings(stack: str) -> Settings | None:
    """The settings of a stack that is in a cloud; None for a local one, and for one without a file that says so.

    Raises UsageError for the file of a cloud's stack with a value that cannot be used.
    """
    check_stack(stack)
    try:
        raw = stack_file.read(stack)
    except UsageError:
        return None
    return load(stack, raw) if raw["cluster"] in CLUSTERS and raw["cluster"] != "local" else None


def find(stack: str) -> list[Thing]:
    """Everything of the stack that exists."""
    settings = cloud_settings(stack)
    if settings is None:
        return local.find(stack)
    found: list[Thing] = _leftovers(settings).find(settings)
    return found


def sweep(stack: str, known: Collection[str], *, delete_data: bool) -> list[Thing]:
    """Remove what belongs to none of the known; what it was."""
    settings = cloud_settings(stack)
    if settings is None:
        return local.sweep(stack, known)
    swept: list[Thing] = _leftovers(settings).sweep(settings, known, delete_data=delete_data)
    return swept


def _leftovers(settings: Settings) -> ModuleType:
    """Of the stack's cloud: find(settings) and sweep(settings, known, delete_data=...)."""
    return extras.load(f"infra.{settings.cluster.partition('-')[0]}.leftovers")


def unknown(things: list[Thing], known: Collection[str]) -> list[Thing]:
    """Those that belong to nothing that is known. Azure's ids differ in capitals from one answer to the next."""
    lowered = {entry.lower() for entry in known}
    return [thing for thing in things if not {thing.owner.lower(), thing.id.lower()} & lowered]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.audit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("--known", default="[]", help="the resources in the state, as a JSON list")
    parser.add_argument("--sweep", action="store_true", help="remove what is found")
    parser.add_argument("--delete-data", action="store_true", help="buckets too that have something in them")
    args = parser.parse_args()
    known = set(json.loads(args.known))
    try:
        if args.sweep:
            found = sweep(args.stack, known, delete_data=args.delete_data)
        else:
            found = unknown(find(args.stack), known)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except (OperationError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(to_json(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
