"""Build Pulumi's command if it is not there: `python -m infra.pulumi_build`, as root; `make pulumi` calls it."""

from __future__ import annotations

import sys

from infra import go_toolchain
from infra.clouds.local import paths
from infra.errors import say
from infra.pulumi_build import build


def build_command() -> None:
    """Build the command and say where it is."""
    build.build(say)
    say(f"pulumi is in {build.folder()}; for your shell: export PATH=$PATH:{paths.pulumi()}/bin")


if __name__ == "__main__":
    sys.exit(go_toolchain.run_build(build_command))
