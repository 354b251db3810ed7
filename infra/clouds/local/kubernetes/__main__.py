"""Build Kubernetes' programs if they are not there: `python -m infra.clouds.local.kubernetes`, as root.

`make kubernetes` calls it, so that they are there before the first `up` of a stack that needs them.
"""

from __future__ import annotations

import signal
import sys

from infra.clouds.local import image, paths
from infra.clouds.local.kubernetes import programs
from infra.errors import OperationError, UsageError, say, show_error
from infra.state import operation


def main() -> int:
    """Build the programs and say where they are; returns the exit code."""
    # A build that is ended removes what it has made, and ends its compilers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        programs.check()
        watch = operation.CancellationWatch()
        with image.one_at_a_time(paths.kubernetes(), "kubernetes: a stack is building", watch):
            programs.build((), say, watch.check)
    except (UsageError, OperationError) as error:
        return show_error(error)
    except KeyboardInterrupt:
        return 130
    say(f"Kubernetes' programs are in {programs.folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
