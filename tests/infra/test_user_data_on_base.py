"""cloud-init of a local base accepts the user data and writes the scripts as they are."""

from __future__ import annotations

import hashlib
import os
import subprocess

import pytest
from user_data_parts import parts, scripts, sent

from infra import user_data
from infra.clouds.local import paths
from infra.config.settings import Settings

pytestmark = pytest.mark.acceptance  # it needs a base, which a cluster of real machines has made


def in_base(script: str, user_data: str) -> str:
    """What a command says that runs in a base, in a mount namespace of its own: /tmp and /opt are gone afterwards."""
    bases = sorted(paths.home().glob("base/*/rootfs/usr/bin/cloud-init"))
    if os.geteuid() != 0 or not bases:
        pytest.skip("needs root, and a base that `fab up` has made; a bake asks cloud-init as well")
    mounted = (
        'for d in tmp opt; do mount -t tmpfs none "$1/$d"; done; cat > "$1/tmp/data"; exec chroot "$1" sh -euc "$2"'
    )
    argv = ["unshare", "--mount", "sh", "-euc", mounted, "sh", str(bases[0].parents[2]), script]
    done = subprocess.run(argv, input=user_data, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["bake", "baked", "bare"])
def test_cloud_init_accepts_it(name: str, wanted: Settings) -> None:
    in_base("cloud-init schema --config-file /tmp/data", parts(wanted)[name])


WRITE = """
import sys, yaml
from cloudinit.config.cc_write_files import write_files
files = yaml.safe_load(open("/tmp/data"))["write_files"]
write_files("test", [file for file in files if file["path"].startswith("/opt/")], "root:root")
"""


def test_cloud_init_writes_the_scripts_as_they_are(wanted: Settings) -> None:
    listing = f"python3 -c '{WRITE}' && cd /opt/trainyard/bootstrap && find . -type f -exec sha256sum {{}} +"
    lines = [line.split("  ./") for line in in_base(listing, parts(wanted)["bare"]).splitlines()]
    assert {name: digest for digest, name in lines} == {
        str(path.relative_to(user_data.BOOTSTRAP)): hashlib.sha256(sent(path)).hexdigest() for path in scripts()
    }
