"""Profile cuda: what it lays over the bootstrap, and what each part says on a machine without a GPU."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from apt_lists import lists_held, real_apt
from bootstrap_runner import BOOTSTRAP, CUDA, Machine, cuda_module
from cuda_machine import SETTINGS, composed, step

from infra import user_data
from infra.config.settings import Settings, load

# --- laid over the rest ---


def test_the_steps_of_cuda_come_among_the_others_and_replace_torchs() -> None:
    cuda, native = composed("cuda"), composed("native")
    steps = [name.partition("image/")[2] for name in cuda if name.startswith("steps/image/")]
    assert steps == sorted(steps) and {"25-driver", "26-efa", "52-nccl-tests", "91-record"} <= set(steps)
    assert cuda["steps/image/50-torch"] != native["steps/image/50-torch"]
    assert cuda["steps/image/40-libraries"] == native["steps/image/40-libraries"]
    assert cuda["versions.env"].startswith(native["versions.env"]) and "NVIDIA_BRANCH=580" in cuda["versions.env"]
    assert not any("cuda/" in name for name in cuda)


def test_other_profiles_have_nothing_of_it_and_their_images_keep_their_names(
    good: dict[str, str], tmp_path: Path
) -> None:
    bare = tmp_path / "bootstrap"
    shutil.copytree(BOOTSTRAP, bare, ignore=shutil.ignore_patterns("cuda", "__pycache__"))
    for profile in ("native", "ipex"):
        wanted = load("local", {**good, "profile": profile, "collectives": "gloo"})
        assert user_data.image_key(wanted) == user_data.image_key(wanted, bootstrap=bare)
        assert "cuda" not in composed(profile)["bootstrap.sh"]
    assert "TRAINYARD_PROFILE native ipex cuda" in composed("cuda")["bootstrap.sh"]


def test_the_archive_is_what_user_data_would_have_brought(good: dict[str, str]) -> None:
    wanted: Settings = load("local", {**good, "profile": "native"})
    packed = user_data.archive(wanted)
    assert packed == user_data.archive(wanted), "deterministic"
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as found:
        modes = {entry.name: entry.mode for entry in found}
        runner = found.extractfile("bootstrap.sh")
        assert runner is not None and runner.read().decode() == composed("native")["bootstrap.sh"]
    assert modes["bootstrap.sh"] == 0o755 and modes["lib.sh"] == 0o644


def test_the_runner_takes_the_profile(gpus: Machine) -> None:
    assert gpus.boot(**SETTINGS).returncode == 0
    assert gpus.record("ready")["profile"] == "cuda"


# --- on a machine without a GPU ---


def test_a_node_without_a_gpu_says_so(gpus: Machine) -> None:
    step(gpus, "node/25-gpus")
    assert gpus.boot(**SETTINGS).returncode == 1
    failed = gpus.record("failed")
    assert failed["step"] == "gpus"
    assert failed["reason"] == (
        "this machine has no NVIDIA GPU on its PCI bus; profile cuda is for machines with them (8 here)"
    )


@pytest.mark.parametrize(("given", "why"), [("sm_61", "'sm_61'"), ("", "''")])
def test_gpus_that_the_software_does_not_know_are_refused_first(gpus: Machine, given: str, why: str) -> None:
    step(gpus, "image/11-gpus")
    assert gpus.boot(**{**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": given}).returncode == 1
    assert f"TRAINYARD_GPU_ARCHITECTURE is {why}" in str(gpus.record("failed")["reason"])


def module(version: str, license_: str) -> str:
    """modinfo on a machine with NVIDIA's kernel module."""
    return f'[[ $* != *license* ]] || {{ echo "{license_}"; exit 0; }}\necho {version}'


def test_the_open_kernel_module_is_refused_for_volta_and_nothing_else(gpus: Machine) -> None:
    """ParallelCluster's own images have it: driver 580, which with this module shows no V100."""
    step(gpus, "image/25-driver")
    gpus.program("modinfo", module("580.126.18", "Dual MIT/GPL"))
    assert gpus.boot(**SETTINGS).returncode == 1
    failed = gpus.record("failed")
    assert failed["step"] == "driver"
    assert failed["reason"] == (
        "this machine has NVIDIA's open kernel module (Dual MIT/GPL), which drives no Volta GPU: it needs the closed "
        "one of branch 580 (aws-slurm: an image of stacks/aws-slurm-image.yaml)"
    )
    newer = {**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": "sm_80", "TRAINYARD_IMAGE": "key-2"}
    assert gpus.boot(**newer).returncode == 0


def test_a_driver_that_is_there_stays_unless_it_has_left_volta_behind(gpus: Machine) -> None:
    step(gpus, "image/25-driver")
    gpus.program("modinfo", module("580.126.18", "NVIDIA"))
    assert gpus.boot(**SETTINGS).returncode == 0
    gpus.program("modinfo", module("595.10.01", "NVIDIA"))
    assert gpus.boot(**SETTINGS, TRAINYARD_IMAGE="key-2").returncode == 1
    assert "driver 595.10.01, and only branch 580 still drives Volta" in str(gpus.record("failed")["reason"])
    newer = {**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": "sm_80", "TRAINYARD_IMAGE": "key-3"}
    assert gpus.boot(**newer).returncode == 0


def test_gdrcopy_is_for_gpus_whose_memory_efa_reads_and_an_images_own_stays(gpus: Machine) -> None:
    step(gpus, "image/54-gdrcopy")
    gpus.program("apt-get", "exit 1")
    assert gpus.boot(**SETTINGS).returncode == 0, "not on p3dn"
    assert not [line for line in gpus.called() if line.startswith("apt-get")]
    a100 = {**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": "sm_80", "TRAINYARD_GPU_RDMA": "true"}
    gpus.program("modinfo", "exit 1")
    assert gpus.boot(**a100, **{"TRAINYARD_IMAGE": "key-2"}).returncode == 1, "it would be built"
    assert gpus.record("failed")["step"] == "gdrcopy"
    gpus.program("modinfo", "echo 2.5")
    assert gpus.boot(**a100, **{"TRAINYARD_IMAGE": "key-3"}).returncode == 0
    assert "gdrcopy 2.5 is installed" in (gpus.root / "var/log/trainyard-bootstrap.log").read_text()


def test_volta_gets_closed_modules_and_newer_gpus_open_ones(gpus: Machine) -> None:
    step(gpus, "image/25-driver")
    (gpus.root / "etc/os-release").write_text("ID=ubuntu\n")
    gpus.program("apt-get")
    gpus.program("modinfo", f"test -e {gpus.root}/installed || exit 1\n{module('580.126.18', 'NVIDIA')}")
    gpus.program("uname", f"touch {gpus.root}/installed; echo 6.14.0-1018-aws")
    for image, architecture, flavour in (("key-2", "sm_70", "server"), ("key-3", "sm_86", "server-open")):
        (gpus.root / "called").unlink(missing_ok=True)
        (gpus.root / "installed").unlink(missing_ok=True)
        more = {**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": architecture, "TRAINYARD_IMAGE": image}
        assert gpus.boot(**more).returncode == 0
        (line,) = [line for line in gpus.called() if line.startswith("apt-get") and " install " in line]
        assert f"linux-modules-nvidia-580-{flavour}-6.14.0-1018-aws " in line
        assert f"nvidia-headless-no-dkms-580-{flavour} " in line


@pytest.fixture
def driverless(gpus: Machine) -> Machine:
    """A machine whose driver is to be installed, with the real apt."""
    real_apt(gpus)
    step(gpus, "image/25-driver")
    (gpus.root / "etc/os-release").write_text("ID=ubuntu\n")
    gpus.program("modinfo", f"grep -q ' install ' {gpus.root}/called || exit 1\n{module('580.126.18', 'NVIDIA')}")
    return gpus


@pytest.mark.acceptance
def test_the_lock_of_the_package_lists_is_waited_for(driverless: Machine) -> None:
    """apt itself waits for dpkg's lock only."""
    with lists_held(driverless, 4):
        began = time.monotonic()
        done = driverless.boot(**SETTINGS)
        assert done.returncode == 0, done.stdout
        assert time.monotonic() - began >= 3
    assert "Could not get lock" in (driverless.root / "var/log/trainyard-bootstrap.log").read_text()
    calls = [line for line in driverless.called() if line.startswith("apt-get ")]
    assert sum(" update" in line for line in calls) >= 2 and sum(" install " in line for line in calls) == 1


@pytest.mark.acceptance
def test_a_lock_that_is_never_given_back_is_the_reason(driverless: Machine) -> None:
    functions = driverless.root / "bootstrap/gpu.sh"
    assert "SECONDS + 300" in functions.read_text()
    functions.write_text(functions.read_text().replace("SECONDS + 300", "SECONDS + 3"))
    with lists_held(driverless, 60) as holder:
        assert driverless.boot(**SETTINGS).returncode == 1
        holder.kill()
    failed = driverless.record("failed")
    assert failed["step"] == "driver" and "apt-get update: E: Could not get lock" in str(failed["reason"])


def test_what_apt_complains_of_otherwise_is_said_at_once(driverless: Machine) -> None:
    driverless.program("apt-get", "echo 'E: Unable to locate package nvidia-utils'; exit 100")
    assert driverless.boot(**SETTINGS).returncode == 1
    assert driverless.record("failed")["reason"] == "apt-get update: E: Unable to locate package nvidia-utils"
    assert sum(line.startswith("apt-get ") for line in driverless.called()) == 1, "it is not asked again"


# --- torch's build ---


def test_a_build_serves_newer_gpus_of_its_generation_only() -> None:
    build = cuda_module("torch_build")
    assert build.serves(["sm_70", "sm_80"], "sm_86") and build.serves(["sm_90a"], "sm_90")
    assert not build.serves(["sm_75", "sm_80", "sm_90"], "sm_70") and not build.serves(["sm_86"], "sm_80")
    assert not build.serves([], "sm_70")


@pytest.mark.acceptance
def test_torch_is_asked_what_it_is_built_for(tmp_path: Path) -> None:
    """The torch of this environment: built with CUDA 13 or without CUDA, but in no case for Volta."""
    pytest.importorskip("torch")
    versions = tmp_path / "versions.json"
    versions.write_text('{"torch": "x"}')

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, CUDA / "torch_build.py", *arguments], capture_output=True, text=True)

    volta = run("sm_70", str(versions))
    assert volta.returncode == 1 and volta.stdout.endswith("nothing of it runs on sm_70\n")
    assert json.loads(versions.read_text()) == {"torch": "x"}
    ampere = run("sm_86", str(versions))
    if "without CUDA" in volta.stdout:
        assert ampere.returncode == 1
        return
    assert ampere.returncode == 0
    found = json.loads(versions.read_text())
    assert found["torch"] == "x" and "sm_80" in found["torch architectures"] and found["cuda"].startswith("1")
    assert found["nccl"][0].isdigit() and found["efa installer"] == "none"


INDEX = """
case "$*" in
    *--dry-run*) exit {answers} ;;
esac
"""


@pytest.mark.parametrize(
    ("architecture", "answers", "wanted"),
    [
        ("sm_70", 0, "torch==2.13.0+cu126"),
        ("sm_70", 2, "torch==2.10.0"),  # the default index has none for Volta after 2.10
        ("sm_90", 0, "torch==2.13.0+cu130"),
        ("sm_90", 2, "torch==2.13.0"),
    ],
)
def test_torch_comes_from_either_index_without_being_told(
    gpus: Machine, architecture: str, answers: int, wanted: str
) -> None:
    step(gpus, "image/50-torch")
    gpus.program("uv", INDEX.format(answers=answers))
    gpus.program("python")
    binaries = gpus.root / "opt/trainyard/venv/bin"
    binaries.mkdir(parents=True)
    for name in ("uv", "python"):
        (binaries / name).symlink_to(gpus.root / "bin" / name)
    assert gpus.boot(**{**SETTINGS, "TRAINYARD_GPU_ARCHITECTURE": architecture}).returncode == 0
    (install,) = [line for line in gpus.called() if line.startswith("uv ") and "--dry-run" not in line]
    assert install.split()[-1] == wanted
    assert ("--index https://download.pytorch.org/whl/cu1" in install) == (answers == 0)
    assert any(f"torch_build.py {architecture}" in line for line in gpus.called())
