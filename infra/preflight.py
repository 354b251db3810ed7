"""Check a stack before anything is touched: `python -m infra.preflight STACK [--state JSON]`.

Exit code 2 and one line if the user's input is wrong or the machine lacks something. Otherwise JSON for the verbs:
{"facts": from infra.config.summary, "bill": from infra.prices.cost, "plugins": [name, version] of
Pulumi's for its cloud}.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from typing import Any

from infra import clusters
from infra.clouds import account, audit, sdk
from infra.clouds.local import owner
from infra.config import stack_file, summary
from infra.errors import UsageError, prints_json
from infra.prices import cost


@prints_json
def main() -> dict[str, Any]:
    """Check the stack named on the command line; returns its facts and its bill, for JSON."""
    parser = argparse.ArgumentParser(prog="python -m infra.preflight", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("--state", default="{}", help="the stack's id by the state, as infra.clouds.audit takes it")
    args = parser.parse_args()
    settings = stack_file.settings(args.stack)
    if settings.facts.name and os.environ.get("TRAINYARD_BACKEND") == "embedded":  # before the cloud is asked
        install = "curl -fsSL https://get.pulumi.com | sh, or: make pulumi"
        raise UsageError(f"stack {args.stack} is in a cloud: that needs the `pulumi` command ({install})")
    if not settings.facts.name:
        owner.check(args.stack, audit.claim_of(args.stack, "", json.loads(args.state)).ids)
    clusters.of(settings).check(settings)
    account.cheap(settings)
    bill = cost.bill(settings, datetime.datetime.now(datetime.UTC).date())
    return {"facts": summary.of(settings), "bill": bill, "plugins": sdk.plugins(settings.facts)}


if __name__ == "__main__":
    sys.exit(main())
