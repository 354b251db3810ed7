"""bootstrap/container/layer.sh: how the steps are run while an image is built. In a folder of its own, without root."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from bootstrap_runner import BOOTSTRAP

CONTAINER = BOOTSTRAP / "container"


@dataclass(frozen=True)
class Build:
    """An image under way, with steps of the test's own."""

    root: Path

    def step(self, name: str, body: str) -> None:
        (self.root / "bootstrap/steps/image" / name).write_text(body + "\n")

    def layer(self, first: int, last: int, **more: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self.root / "bootstrap/layer.sh"), str(first), str(last)]
        environment = {"PATH": os.environ["PATH"], "TRAINYARD_PREFIX": str(self.root), **more}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)

    @property
    def notes(self) -> list[str]:
        path = self.root / "notes"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def build(tmp_path: Path) -> Build:
    (tmp_path / "bootstrap/steps/image").mkdir(parents=True)
    for source in (
        CONTAINER / "layer.sh",
        *(BOOTSTRAP / name for name in ("lib.sh", "versions.env", "pip_settings.py")),
    ):
        shutil.copy(source, tmp_path / "bootstrap")
    (tmp_path / "bootstrap/container.env").write_text("STEP_TIMEOUT=20\nTRAINYARD_PROFILE=native\n")
    made = Build(tmp_path)
    for name in ("10-one", "20-two", "30-three", "95-finish"):
        made.step(name, f'echo "{name} $TRAINYARD_PROFILE $TORCH_native" >>"$PREFIX/notes"')
    return made


def test_a_layer_runs_its_steps_in_order_and_cleans_up(build: Build) -> None:
    lists = build.root / "var/lib/apt/lists/debian"
    lists.parent.mkdir(parents=True)
    lists.touch()
    done = build.layer(10, 29)
    assert done.returncode == 0, done.stderr
    assert [note.split()[0] for note in build.notes] == ["10-one", "20-two", "95-finish"]
    assert {note.split()[1] for note in build.notes} == {"native"} and len(build.notes[0].split()) == 3, (
        "lib.sh was read"
    )
    assert "== step two\n== step two: done in 0 s\n" in done.stdout
    assert not lists.exists(), "the layer would have them for ever"
    for folder in ("opt/trainyard", "etc/trainyard", "var/lib/trainyard"):
        assert (build.root / folder).is_dir()


@pytest.mark.parametrize(
    "body, reason",
    [
        ('fail "no such torch"', "no such torch"),
        ("false\necho never", "exit code 1, see above"),
        ("echo $UNKNOWN", "exit code 1, see above"),
        ("STEP=1; sleep 30", "did not end within 1 s"),
    ],
)
def test_the_first_step_that_fails_ends_the_build_with_its_reason(body: str, reason: str, build: Build) -> None:
    build.step("20-two", body)
    (build.root / "bootstrap/container.env").write_text("STEP_TIMEOUT=1\nTRAINYARD_PROFILE=native\n")
    done = build.layer(10, 39)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == f"== step two failed: {reason}"
    assert [note.split()[0] for note in build.notes] == ["10-one"] and "never" not in done.stdout


def test_a_reason_is_not_that_of_an_earlier_layer(build: Build) -> None:
    build.step("10-one", 'fail "first"')
    assert build.layer(10, 19).stdout.endswith("first\n")
    build.step("10-one", "exit 7")
    assert build.layer(10, 19).stdout.splitlines()[-1] == "== step one failed: exit code 7, see above"


def test_a_step_has_the_settings_of_pip_and_the_certificates_of_the_one_who_builds(build: Build) -> None:
    secrets = build.root / "run/secrets"
    secrets.mkdir(parents=True)
    (secrets / "pip").write_text("[global]\nindex-url = https://pip.example.org/simple\n")
    (secrets / "ca").write_text("certificates")
    build.step("10-one", 'echo "$UV_DEFAULT_INDEX $PIP_CONFIG_FILE $SSL_CERT_FILE" >"$PREFIX/notes"')
    done = build.layer(10, 19, PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 0, done.stderr
    assert build.notes[0].split() == ["https://pip.example.org/simple", str(secrets / "pip"), str(secrets / "ca")]


def test_without_them_nothing_is_set(build: Build) -> None:
    build.step("10-one", 'echo "[${UV_DEFAULT_INDEX:-} ${SSL_CERT_FILE:-}]" >"$PREFIX/notes"')
    assert build.layer(10, 19, PIP_CONFIG_FILE=os.devnull).returncode == 0
    assert build.notes[0] == "[ ]"


def test_efa_is_for_gpus_on_aws(build: Build) -> None:
    """Without a card, a driver or the network: where it is of no use nothing is fetched."""
    shutil.copy(CONTAINER / "steps/26-efa", build.root / "bootstrap/steps/image")
    for profile, cluster in (("native", "aws-xeon"), ("cuda", "local")):
        (build.root / "bootstrap/container.env").write_text(
            f"STEP_TIMEOUT=20\nTRAINYARD_PROFILE={profile}\nTRAINYARD_CLUSTER={cluster}\n"
        )
        assert build.layer(26, 26).returncode == 0
    (build.root / "bootstrap/container.env").write_text(
        "STEP_TIMEOUT=20\nTRAINYARD_PROFILE=cuda\nTRAINYARD_CLUSTER=aws-xeon\n"
    )
    shutil.copy(BOOTSTRAP / "cuda/gpu.sh", build.root / "bootstrap")
    (build.root / "bin").mkdir()
    for name, body in (("apt-get", "true"), ("curl", "exit 22")):
        (build.root / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$TRAINYARD_PREFIX/notes"\n{body}\n')
        (build.root / "bin" / name).chmod(0o755)
    more = {"PATH": f"{build.root}/bin:{os.environ['PATH']}"}
    with (build.root / "bootstrap/versions.env").open("ab") as versions:
        versions.write((BOOTSTRAP / "cuda/versions.env").read_bytes())
    done = build.layer(26, 26, **more)
    assert done.returncode == 1 and "aws-efa-installer-1.48.0.tar.gz cannot be had" in done.stdout.splitlines()[-1]
    assert any("install --no-install-recommends curl" in note for note in build.notes)
