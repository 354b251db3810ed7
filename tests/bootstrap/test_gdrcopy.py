"""The step gdrcopy with a build of the test's own: what is installed for it, fetched, built against and loaded.

The step writes below /etc and looks in /usr/src, also under a test's root; here it is told where these are.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bootstrap_runner import Machine
from cuda_machine import SETTINGS, composed, step

A100 = {**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": "sm_80", "TRAINYARD_GPU_RDMA": "true"}
PINS = dict(re.findall(r"^(\w+)=(\S+)$", composed("cuda")["versions.env"], re.MULTILINE))
KERNEL = "6.14.0-1018-aws"
APT = """
sources={root}/usr/src/nvidia-580.126.18
[[ $* != *" install "* ]] || {{ mkdir -p $sources && touch $sources/Kbuild; }}
"""
"""The driver's sources come with its package."""
GIT = """
[[ $1 != init ]] || mkdir -p "$3"
[[ $* != *checkout* ]] || cp {root}/Makefile "$2/"
"""
MAKEFILE = """
driver:
\ttest -e $(NVIDIA_SRC_DIR)/Kbuild
\ttouch gdrdrv.ko
lib:
\ttouch libgdrapi.so
drv_install:
\ttest -e gdrdrv.ko
\techo gdrdrv.ko in $(CURDIR) >>{root}/installed
lib_install:
\ttest -e libgdrapi.so
\techo libgdrapi.so below $(prefix) >>{root}/installed
"""
"""As gdrcopy's own has its targets; a real make runs it."""


@pytest.fixture
def a100(gpus: Machine) -> Machine:
    """A machine with A100s on EFA, whose archive and network are played."""
    step(gpus, "image/54-gdrcopy")
    path = gpus.root / "bootstrap/steps/image/54-gdrcopy"
    text = path.read_text()
    for place in ("/usr/src/nvidia-", "/etc/modules-load.d/"):
        assert text.count(place) == 1
        text = text.replace(place, f"$PREFIX{place}")
    path.write_text(text)
    (gpus.root / "etc/modules-load.d").mkdir()
    (gpus.root / "Makefile").write_text(MAKEFILE.format(root=gpus.root))
    gpus.program("modinfo", "exit 1")
    gpus.program("uname", f"echo {KERNEL}")
    gpus.program("apt-get", APT.format(root=gpus.root))
    gpus.program("git", GIT.format(root=gpus.root))
    gpus.program("ldconfig")
    return gpus


def folder_of(machine: Machine) -> Path:
    """Where the source was put."""
    (made,) = [line for line in machine.called() if line.startswith("git init ")]
    return Path(made.split()[-1])


def test_gdrcopy_is_built_against_the_drivers_sources_and_loaded_at_each_start(a100: Machine) -> None:
    done = a100.boot(**A100)
    assert done.returncode == 0, done.stdout + (a100.root / "var/log/trainyard-bootstrap.log").read_text()
    folder, called = folder_of(a100), a100.called()
    (apt,) = [line for line in called if line.startswith("apt-get ")]
    assert {f"linux-headers-{KERNEL}", "nvidia-kernel-source-580-server-open", "git", "make"} <= set(apt.split())
    assert f"git -C {folder} fetch -q --depth 1 {PINS['GDRCOPY']} {PINS['GDRCOPY_COMMIT']}" in called
    assert (a100.root / "installed").read_text() == f"gdrdrv.ko in {folder}\nlibgdrapi.so below /usr/local\n"
    assert called[-1].startswith("ldconfig"), "which then finds the library"
    assert (a100.root / "etc/modules-load.d/gdrdrv.conf").read_text() == "gdrdrv\n"
    assert not folder.exists(), "nothing of the build stays in the image"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("", "no sources of the driver in /usr/src"),
        ("touch gdrdrv.ko", f"gdrcopy {PINS['GDRCOPY_COMMIT']} cannot be built"),
        ("test -e libgdrapi.so", f"gdrcopy {PINS['GDRCOPY_COMMIT']} cannot be installed"),
    ],
)
def test_what_cannot_be_built_is_the_reason(a100: Machine, broken: str, reason: str) -> None:
    if broken:
        text = (a100.root / "Makefile").read_text()
        (a100.root / "Makefile").write_text(text.replace(f"\t{broken}\n", "\tfalse\n"))
    else:
        a100.program("apt-get")  # brings none
    assert a100.boot(**A100).returncode == 1
    failed = a100.record("failed")
    assert (failed["step"], failed["reason"]) == ("gdrcopy", reason)
    assert not any(line.startswith("ldconfig") for line in a100.called())
    assert not broken or not folder_of(a100).exists()
