"""Build Pulumi's command if it is not there: `python -m infra.pulumi_build`, as root; `make pulumi` calls it."""

from __future__ import annotations

import signal
import sys

from infra.clouds.local import paths
from infra.errors import OperationError, UsageError, say, show_error
from infra.pulumi_build import build


def main() -> int:
    """Build the command and say where it is; returns the exit code."""
    # A build that is ended removes what it has made, and ends its compilers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        build.build(say)
    except (UsageError, OperationError) as error:
        return show_error(error)
    except KeyboardInterrupt:
        return 130
    say(f"pulumi is in {build.folder()}; for your shell: export PATH=$PATH:{paths.pulumi()}/bin")
    return 0


if __name__ == "__main__":
    sys.exit(main())
