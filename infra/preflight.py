"""Check a stack before anything is touched: `python -m infra.preflight STACK`.

Exit code 2 and one line for what the user wrote or the machine lacks; 0 and nothing otherwise.
"""

from __future__ import annotations

import sys

from infra import account, clusters, stack_file
from infra.errors import UsageError
from infra.settings import load


def main() -> int:
    try:
        settings = load(sys.argv[1], stack_file.read(sys.argv[1]))
        clusters.of(settings).check(settings)
        account.cheap(settings)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
