"""Check a stack before anything is touched: `python -m infra.preflight STACK [--state JSON]`.

Exit code 2 and one line if the user's input is wrong or the machine lacks something. Otherwise JSON for the verbs:
{"about": from infra.config.summary, "bill": from infra.prices.cost}.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys

from infra import clusters
from infra.clouds import account, audit
from infra.clouds.local import owner
from infra.config import stack_file, summary
from infra.config.settings import load
from infra.errors import OperationError, UsageError, show_error
from infra.prices import cost


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.preflight", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("--state", default="{}", help="the stack's id by the state, as infra.clouds.audit takes it")
    args = parser.parse_args()
    try:
        settings = load(args.stack, stack_file.read(args.stack))
        if settings.facts.name and os.environ.get("TRAINYARD_BACKEND") == "embedded":  # before the cloud is asked
            install = "curl -fsSL https://get.pulumi.com | sh"
            raise UsageError(f"stack {args.stack} is in a cloud: that needs the `pulumi` command ({install})")
        if not settings.facts.name:
            owner.check(args.stack, audit.claim_of(args.stack, "", json.loads(args.state)).ids)
        clusters.of(settings).check(settings)
        account.cheap(settings)
        bill = cost.bill(settings, datetime.datetime.now(datetime.UTC).date())
    except (UsageError, OperationError) as error:
        return show_error(error)
    print(json.dumps({"about": summary.of(settings), "bill": bill}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
