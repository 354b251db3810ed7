"""Profile cuda installed for real, as far as the package index serves it: libraries, Intel MPI, torch, impi-devel.

Each boot downloads and unpacks some gigabytes, which are removed again. Nothing of it needs a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from bootstrap_runner import Machine, cuda_module
from cuda_machine import SETTINGS, step

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(5400)]

PYTHON_HALF = (
    *("11-gpus", "30-python", "40-libraries", "45-mpi", "50-torch", "52-nccl-tests"),
    *("80-runtime", "81-runtime", "90-verify", "91-record"),
)
"""The image's steps that need no driver, no EFA and no kernel."""
MAKE = """
for word in "$@"; do case $word in *=*) declare "${word%%=*}=${word#*=}" ;; esac; done
test -s "$MPI_HOME/include/mpi.h" && test -s "$MPI_HOME/lib/libmpi.so" && test -s "$NCCL_HOME/include/nccl.h"
echo 'int ncclGetVersion(int *); int MPI_Initialized(int *);' >source.c
echo 'int main(void) { int n; return ncclGetVersion(&n) || n < 20000 || MPI_Initialized(&n); }' >>source.c
gcc source.c -L"$NCCL_HOME/lib" -L"$MPI_HOME/lib" -lnccl -lmpi -o all_reduce_perf
LD_LIBRARY_PATH=$NCCL_HOME/lib:$VENV/lib ./all_reduce_perf
mkdir -p "$BUILDDIR" && mv all_reduce_perf "$BUILDDIR/"
"""
"""In nvcc's place, whose archive is another: links a program with torch's NCCL and our MPI, as nccl-tests is, and runs
it."""


@pytest.fixture
def empty(gpus: Machine) -> Iterator[Machine]:
    """A machine on which nothing is installed yet; what a test installs there is removed."""
    index = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--no-cache-dir"]
    asked = subprocess.run([*index, "six==1.17.0"], capture_output=True, text=True)
    if asked.returncode:
        pytest.skip(f"the package index cannot be reached: {asked.stderr.strip().splitlines()[-1]}")
    if shutil.disk_usage(gpus.root).free < 26e9:
        pytest.skip("profile cuda needs 25 GB of disk")
    yield gpus
    shutil.rmtree(gpus.root / "opt", ignore_errors=True)


def built_by_hand(machine: Machine) -> None:
    """NVIDIA's archive and GitHub are not asked; a missing tcmalloc, a Debian package, is no part of this profile."""
    (machine.root / "etc/os-release").write_text("ID=ubuntu\n")
    for name in ("curl", "dpkg", "apt-get", "git"):
        machine.program(name)
    machine.program("make", 'set -e\ncd "$(mktemp -d)"\n' + MAKE)
    have = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    if "libtcmalloc_minimal.so.4" not in have:
        (libm,) = [line.split()[-1] for line in have.splitlines() if "libm.so.6 (libc6,x86-64" in line]
        machine.program("ldconfig", f"echo 'libtcmalloc_minimal.so.4 (libc6,x86-64) => {libm}'")


@pytest.mark.parametrize(
    ("architecture", "default"),
    [("sm_70", "2.10.0"), ("sm_90", "2.13.0")],  # what the default index has for Volta, and for newer GPUs
)
def test_the_python_half_is_installed_for_real(empty: Machine, architecture: str, default: str) -> None:
    for name in PYTHON_HALF:
        step(empty, f"image/{name}")
    (empty.root / "bootstrap/steps/image/99-versions").unlink()
    built_by_hand(empty)
    empty.settings(**{**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": architecture, "STEP_TIMEOUT": "2400"})
    done = empty.run(os.environ, timeout=5000)
    log = (empty.root / "var/log/trainyard-bootstrap.log").read_text()
    assert done.returncode == 0, f"{done.stdout}\n{log[-3000:]}"

    found = json.loads((empty.state / "versions.json").read_text())
    own_index = "from the default index" not in log
    assert found["torch"].partition("+")[0] == ("2.13.0" if own_index else default)
    assert cuda_module("torch_build").serves(found["torch architectures"].split(), architecture)
    assert found["cuda"].startswith("12." if architecture == "sm_70" else "13.")
    assert found["nccl"].startswith("2.") and found["impi"] and found["accelerate"]
    assert (empty.root / "opt/trainyard/nccl-tests/all_reduce_perf").exists()
    other = {"sm_70": "sm_120", "sm_90": "sm_70"}[architecture]
    python, program = empty.root / "opt/trainyard/venv/bin/python", empty.root / "bootstrap/torch_build.py"
    refused = subprocess.run([str(python), "-I", str(program), other], capture_output=True)
    assert (refused.returncode == 0) == cuda_module("torch_build").serves(found["torch architectures"].split(), other)


OTHER_HOSTS = {
    "Amazon's, of EFA's installer": (
        "EFA_URL",
        'curl -fsS "$EFA_URL" | tar -tz | grep -x aws-efa-installer/efa_installer.sh',
    ),
    "NVIDIA's archive, of CUDA's compiler": (
        "CUDA_KEYRING",
        'curl -fsS -o keyring.deb "$CUDA_KEYRING"; dpkg-deb --field keyring.deb Package | grep -x cuda-keyring',
    ),
    "the one of nccl-tests' source": (
        "NCCL_TESTS",
        'git_at "$NCCL_TESTS" "$NCCL_TESTS_COMMIT" source; ls source/src/all_reduce.cu',
    ),
    "the one of gdrcopy's source": (
        "GDRCOPY",
        'git_at "$GDRCOPY" "$GDRCOPY_COMMIT" source; ls source/src/gdrdrv',
    ),
}
"""Role -> the pin with its address, and what the steps take from there."""


@pytest.mark.parametrize("role", OTHER_HOSTS)
def test_what_other_hosts_serve_is_as_pinned(gpus: Machine, role: str) -> None:
    """To unpack it is all that can be done without the kernel and the archive of a node."""
    pin, taken = OTHER_HOSTS[role]
    gpus.state.mkdir(parents=True)
    script = 'cd "$TRAINYARD_PREFIX"; . "$BOOTSTRAP/lib.sh"; . "$BOOTSTRAP/gpu.sh"; {}'
    own = {"BOOTSTRAP": str(gpus.root / "bootstrap"), "TRAINYARD_PREFIX": str(gpus.root)}

    def bash(text: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", script.format(text)]
        return subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=600)

    asked = bash(f'curl -sS -o /dev/null --head --connect-timeout 10 --max-time 20 "${pin}"')
    if asked.returncode:
        pytest.skip(f"a host cannot be reached, {role}: {asked.stderr.strip()}")
    done = bash(taken)
    assert done.returncode == 0, done.stdout + done.stderr
