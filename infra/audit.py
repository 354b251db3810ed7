"""What of a stack exists outside its state: `python -m infra.audit STACK [--known a,b,c] [--sweep]`.

Prints a JSON list of {kind, what, owner} of everything that exists and whose owner is not among the known
resources; with --sweep it is removed first, and the list is what was removed.
"""

from __future__ import annotations

import argparse
import sys

from infra.errors import OperationError, UsageError
from infra.local import leftovers
from infra.settings import check_stack
from infra.thing import to_json


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.audit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("--known", default="", help="names of the resources in the state, separated by commas")
    parser.add_argument("--sweep", action="store_true", help="remove what is found")
    args = parser.parse_args()
    known = set(filter(None, args.known.split(",")))
    try:
        check_stack(args.stack)
        if args.sweep:
            found = leftovers.sweep(args.stack, known)
        else:
            found = [thing for thing in leftovers.find(args.stack) if thing.owner not in known]
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
