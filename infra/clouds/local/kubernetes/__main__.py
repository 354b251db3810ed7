"""Build Kubernetes' programs if they are not there: `python -m infra.clouds.local.kubernetes`, as root.

`make kubernetes` calls it, so that they are there before the first `up` of a stack that needs them.
"""

from __future__ import annotations

import sys

from infra import go_toolchain
from infra.clouds.local import image, paths
from infra.clouds.local.kubernetes import programs
from infra.errors import say
from infra.state import operation


def build() -> None:
    """Build the programs and say where they are."""
    programs.check()
    watch = operation.CancellationWatch()
    with image.one_at_a_time(paths.kubernetes(), "kubernetes: a stack is building", watch):
        programs.build((), say, watch.check)
    say(f"Kubernetes' programs are in {programs.folder()}")


if __name__ == "__main__":
    sys.exit(go_toolchain.run_build(build))
