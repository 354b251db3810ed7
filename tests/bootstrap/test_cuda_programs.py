"""Profile cuda's steps that install EFA and nccl-tests, write the ranks' environment and the records: with programs of
the test's own in place of apt, curl, git, make, nvidia-smi and fi_info."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from bootstrap_runner import Machine
from cuda_machine import SETTINGS, step

pytestmark = pytest.mark.acceptance

PLUGIN = "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so"
NO_PLUGIN = "no plugin for NCCL (aws-ofi-nccl): collectives would go over TCP"
FI_INFO = "provider: efa\n    domain: rdmap83s0-rdm\nprovider: efa\n    domain: rdmap83s0-dgrm\n"


def script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def installed(gpus: Machine, *, plugin: bool = True) -> None:
    """What EFA's installer leaves."""
    script(gpus.root / "opt/amazon/efa/bin/fi_info", f"printf '{FI_INFO}'")
    (gpus.root / "opt/amazon/efa_installed_packages").write_text("# EFA installer version: 1.48.0\n")
    if plugin:
        (gpus.root / PLUGIN).parent.mkdir(parents=True)
        (gpus.root / PLUGIN).touch()


# --- EFA ---


def installer(gpus: Machine, brings: str, code: int = 0) -> None:
    """curl, which brings an archive of EFA's installer; that makes these files, and ends with the code."""
    folder = gpus.root / "archive/aws-efa-installer"
    files = " ".join(f"{gpus.root}/opt/amazon/{name}" for name in brings.split())
    script(
        folder / "efa_installer.sh",
        f'echo "installer $*" >>{gpus.root}/called\n'
        f'for file in {files}; do mkdir -p "${{file%/*}}"; : >"$file"; chmod 755 "$file"; done\nexit {code}',
    )
    gpus.program("curl", f"tar -cz -C {gpus.root}/archive aws-efa-installer")
    gpus.program("apt-get")
    gpus.program("uname", "echo 6.14.0-1018-aws")


def test_efa_comes_with_its_kernel_module_and_is_not_tested_on_the_builder(gpus: Machine) -> None:
    step(gpus, "image/26-efa")
    installer(gpus, f"efa/bin/fi_info {PLUGIN.removeprefix('opt/amazon/')}")
    assert gpus.boot(**SETTINGS).returncode == 0
    called = gpus.called()
    (url,) = [line.split()[-1] for line in called if line.startswith("curl")]
    assert url == "https://efa-installer.amazonaws.com/aws-efa-installer-1.48.0.tar.gz"
    assert [line for line in called if line.startswith("installer")] == ["installer --yes --no-verify"]
    (headers,) = [line for line in called if line.startswith("apt-get")]
    assert headers.endswith(" install --no-install-recommends linux-headers-6.14.0-1018-aws")


@pytest.mark.parametrize(
    ("brings", "code", "why"),
    [
        ("efa/bin/fi_info", 0, f"EFA's installer 1.48.0 brought {NO_PLUGIN}"),
        ("ofi-nccl/lib/libnccl-net.so", 0, "EFA's installer 1.48.0 brought no "),
        ("efa/bin/fi_info", 3, "EFA's installer 1.48.0 ended with code 3"),
    ],
)
def test_an_installer_that_leaves_something_out_fails(gpus: Machine, brings: str, code: int, why: str) -> None:
    step(gpus, "image/26-efa")
    installer(gpus, brings, code)
    assert gpus.boot(**SETTINGS).returncode == 1
    assert gpus.record("failed")["step"] == "efa" and why in str(gpus.record("failed")["reason"])


def test_an_images_own_efa_stays_if_nccl_can_use_it(gpus: Machine) -> None:
    """ParallelCluster's images have EFA; without the plugin every job would run, at a tenth of its speed."""
    step(gpus, "image/26-efa")
    installer(gpus, "none")
    installed(gpus, plugin=False)
    assert gpus.boot(**SETTINGS).returncode == 1
    assert gpus.record("failed")["reason"] == (
        f"this machine has EFA, but {NO_PLUGIN}; use an image with it, or without EFA"
    )
    (gpus.root / PLUGIN).parent.mkdir(parents=True)
    (gpus.root / PLUGIN).touch()
    assert gpus.boot(**SETTINGS).returncode == 0
    assert "installed: # EFA installer version: 1.48.0" in (gpus.root / "var/log/trainyard-bootstrap.log").read_text()
    assert not any(line.startswith(("curl", "installer")) for line in gpus.called())


def test_no_efa_outside_aws(gpus: Machine) -> None:
    step(gpus, "image/26-efa")
    installer(gpus, "none")
    assert gpus.boot(**{**SETTINGS, "TRAINYARD_CLUSTER": "local"}).returncode == 0
    assert not any(line.startswith("curl") for line in gpus.called())


# --- nccl-tests ---


@pytest.fixture
def compiles(gpus: Machine) -> Machine:
    """A machine with Ubuntu, on which nccl-tests can be built."""
    step(gpus, "image/52-nccl-tests")
    (gpus.root / "etc/os-release").write_text("ID=ubuntu\n")
    for name in ("apt-get", "curl", "dpkg", "git"):
        gpus.program(name)
    gpus.program(
        "make",
        "for word; do case $word in BUILDDIR=*) built=${word#*=};; esac; done\n"
        'mkdir -p "$built"; echo program >"$built/all_reduce_perf"',
    )
    venv = gpus.root / "opt/trainyard/venv"
    script(venv / "bin/uv", f'echo "uv $* <$(cat)>" >>{gpus.root}/called')
    script(venv / "bin/python", f"echo {gpus.root}/nccl")
    (gpus.root / "nccl/lib").mkdir(parents=True)
    return gpus


@pytest.mark.parametrize(("architecture", "cuda"), [("sm_70", "12-6"), ("sm_90", "13-0")])
def test_nccl_tests_is_built_for_the_gpu_with_torchs_nccl_and_our_mpi(
    compiles: Machine, architecture: str, cuda: str
) -> None:
    assert compiles.boot(**{**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": architecture}).returncode == 0
    called, number, root = compiles.called(), architecture[3:], compiles.root
    assert any(f"install --no-install-recommends git make cuda-nvcc-{cuda} cuda-cudart-dev-{cuda}" in c for c in called)
    assert any(c.startswith("uv ") and "impi-devel==2021.16.1 --hash=sha256:" in c for c in called)
    assert any("fetch -q --depth 1 https://github.com/NVIDIA/nccl-tests a0b82b2260cf" in c for c in called)
    (make,) = [line for line in called if line.startswith("make ")]
    toolkit = f"/usr/local/cuda-{cuda.replace('-', '.')}"
    assert " MPI=1 MPI_HOME=" in make and f" CUDA_HOME={toolkit} NCCL_HOME={root}/nccl " in make
    assert make.endswith(f" NVCC_GENCODE=-gencode=arch=compute_{number},code=sm_{number}")
    assert called[-1].endswith(f"purge --autoremove cuda-nvcc-{cuda}"), "the compiler is large"
    tests = root / "opt/trainyard/nccl-tests"
    assert (tests / "all_reduce_perf").read_text() == "program\n" and os.access(tests / "all_reduce_perf", os.X_OK)
    assert (tests / "environment").read_text() == (
        f"LD_LIBRARY_PATH={root}/nccl/lib:{root}/opt/trainyard/venv/lib:{toolkit}/lib64\n"
    )
    assert compiles.boot(**SETTINGS, TRAINYARD_IMAGE="key-2").returncode == 0
    assert not [line for line in compiles.called()[len(called) :] if not line.startswith("systemctl")], "once"


def test_nccl_tests_that_cannot_be_built_say_why(compiles: Machine) -> None:
    compiles.program("make", "exit 2")
    assert compiles.boot(**SETTINGS).returncode == 1
    assert str(compiles.record("failed")["reason"]).endswith("cannot be built with CUDA 12.6")
    (compiles.root / "etc/os-release").write_text("ID=debian\n")
    assert compiles.boot(**SETTINGS).returncode == 1
    assert "needs CUDA's compiler from NVIDIA's archive for Ubuntu 24.04" in str(compiles.record("failed")["reason"])


# --- the ranks' environment ---


@pytest.mark.parametrize("efa", [True, False])
def test_ranks_find_efas_plugin_and_none_of_intels_providers(gpus: Machine, efa: bool) -> None:
    step(gpus, "image/81-runtime")
    gpus.step("image/80-before", 'printf "PATH=/x\\nFI_PROVIDER_PATH=/v\\n" >"$RUNTIME_ENV"')
    if efa:
        installed(gpus)
    assert gpus.boot(**SETTINGS).returncode == 0
    amazon = gpus.root / "opt/amazon"
    plugin = [f"LD_LIBRARY_PATH={(gpus.root / PLUGIN).parent}:{amazon}/efa/lib"] if efa else []
    assert (gpus.root / "etc/trainyard/runtime.env").read_text().splitlines() == [
        "PATH=/x",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        *plugin,
    ]


# --- the records ---

TORCH = """
import types
__version__ = "2.13.0+cu126"
version = types.SimpleNamespace(cuda="12.6")
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_70 sm_80")
"""


def software(gpus: Machine) -> None:
    """A venv whose torch is built for V100 and A100, with NCCL."""
    there = gpus.root / "packages"
    (there / "nvidia_nccl_cu12-2.29.3.dist-info").mkdir(parents=True)
    (there / "nvidia_nccl_cu12-2.29.3.dist-info/METADATA").write_text("Name: nvidia-nccl-cu12\nVersion: 2.29.3\n")
    (there / "torch.py").write_text(TORCH)
    run = f'[[ $* != *device_count* ]] || {{ echo 8; exit; }}\nshift; PYTHONPATH={there} exec {sys.executable} -S "$@"'
    script(gpus.root / "opt/trainyard/venv/bin/python", run)


def test_the_images_record_says_what_its_gpu_software_is(gpus: Machine) -> None:
    step(gpus, "image/91-record")
    (gpus.root / "bootstrap/steps/image/99-versions").rename(gpus.root / "bootstrap/steps/image/90-versions")
    software(gpus)
    installed(gpus)
    gpus.program("modinfo", "echo 580.126.18")
    assert gpus.boot(**SETTINGS).returncode == 0
    image = json.loads((gpus.root / "opt/trainyard/image.json").read_text())
    assert image["versions"] == {
        "torch": "2.13.0",
        "cuda": "12.6",
        "torch architectures": "sm_70 sm_80",
        "nccl": "2.29.3",
        "nvidia driver": "580.126.18",
        "efa installer": "1.48.0",
    }
    hopper = {**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": "sm_90", "TRAINYARD_IMAGE": "key-2"}
    assert gpus.boot(**hopper).returncode == 1
    assert str(gpus.record("failed")["reason"]).endswith("nothing of it runs on sm_90")


def p3dn(gpus: Machine, links: int = 6) -> None:
    """Eight V100, their driver's answers, and one EFA card."""
    for number in range(8):
        device = gpus.root / f"sys/bus/pci/devices/0000:00:{16 + number:x}.0"
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    each = "\n".join(f"00000000:00:{16 + i:x}.0, Tesla V100-SXM2-32GB, 7.0, 580.126.20, 32768" for i in range(8))
    status = "\n".join(f"GPU {i}: Tesla V100\n" + "\t Link 0: 25.781 GB/s\n" * links for i in range(8))
    gpus.program("nvidia-smi", f"[[ $1 == nvlink ]] && printf '{status}' || printf '{each}\n'")
    installed(gpus)
    software(gpus)


def test_a_nodes_record_has_its_gpus_and_its_driver_of_this_boot(gpus: Machine) -> None:
    step(gpus, "node/25-gpus")
    gpus.step("image/99-versions", """echo '{"torch": "x", "nvidia driver": "580.126.18"}' >"$STATE/versions.json" """)
    p3dn(gpus)
    assert gpus.boot(**SETTINGS).returncode == 0, gpus.record("failed")
    versions = gpus.record("ready")["versions"]
    assert isinstance(versions, dict)
    assert {key: versions[key] for key in ("torch", "gpus", "nvidia driver", "nvlinks of each gpu", "efa cards")} == {
        "torch": "x",
        "gpus": "8 x Tesla V100-SXM2-32GB (sm_70)",
        "nvidia driver": "580.126.20",  # the one that runs, not the one that the image was baked with
        "nvlinks of each gpu": "6 6 6 6 6 6 6 6",
        "efa cards": "1",
    }
    assert "gpus: 8 x Tesla V100-SXM2-32GB (sm_70), nv" in (gpus.root / "var/log/trainyard-bootstrap.log").read_text()
    assert not any("fabricmanager" in line for line in gpus.called()), "no NVSwitch"


def test_what_is_wrong_with_the_gpus_ends_the_boot_and_leaves_no_record_of_the_one_before(gpus: Machine) -> None:
    step(gpus, "node/25-gpus")
    p3dn(gpus)
    assert gpus.boot(**SETTINGS).returncode == 0
    p3dn_links = gpus.root / "bin/nvidia-smi"
    p3dn_links.write_text(p3dn_links.read_text().replace("25.781 GB/s", "<inactive>"))
    assert gpus.boot(**SETTINGS).returncode == 1
    assert gpus.record("failed")["reason"] == "NVLink is down: active links by GPU: 0 0 0 0 0 0 0 0"
    assert not (gpus.state / "gpus.json").exists()


def test_gpus_behind_nvswitch_need_its_manager_first(gpus: Machine) -> None:
    step(gpus, "node/25-gpus")
    p3dn(gpus)
    (gpus.root / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0").mkdir(parents=True)
    assert gpus.boot(**SETTINGS).returncode == 0
    called = gpus.called()
    started = called.index("systemctl enable --now nvidia-fabricmanager.service")
    assert started < min(number for number, line in enumerate(called) if line.startswith("nvidia-smi"))
