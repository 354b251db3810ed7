"""Check a stack before anything is touched: `python -m infra.preflight STACK`.

Exit code 2 and one line for what the user wrote or the machine lacks. Otherwise what the verbs go on with, as JSON:
{"about": what infra.about says of the stack, "bill": what infra.cost says}.
"""

from __future__ import annotations

import datetime
import json
import sys

from infra import about, account, clusters, cost, stack_file
from infra.errors import UsageError, told
from infra.settings import load


def main() -> int:
    try:
        settings = load(sys.argv[1], stack_file.read(sys.argv[1]))
        clusters.of(settings).check(settings)
        account.cheap(settings)
        bill = cost.bill(settings, datetime.datetime.now(datetime.UTC).date())
    except UsageError as error:
        return told(error)
    print(json.dumps({"about": about.of(settings), "bill": bill}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
