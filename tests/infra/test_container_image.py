"""The build context of the container image: what of bootstrap/ is in it, what is not, and its name."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import moto_cloud
import pytest

from infra import container_image, user_data
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
Of = Callable[..., tuple[str, container_image.Files, Settings]]
STEPS = "bootstrap/steps/image/"
BASE = "registry.example.org/base/debian@sha256:" + "0123456789abcdef" * 4


@pytest.fixture
def settings(good: dict[str, str]) -> Settings:
    return moto_cloud.settings_of("aws-eks", good["publicKey"])


@pytest.fixture
def of(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Of:
    monkeypatch.setattr(stack_file, "settings", lambda _stack: settings)
    return lambda profile="", base="": container_image.of("yard", profile, base)


def steps(files: container_image.Files) -> list[str]:
    return [name.removeprefix(STEPS) for name in sorted(files) if name.startswith(STEPS)]


def test_an_image_has_the_steps_of_its_profile_that_make_sense_in_one(settings: Settings) -> None:
    native, cuda = (container_image.context(replace(settings, profile=name)) for name in ("native", "cuda"))
    common = ["10-preflight", "20-packages", "21-servers", "26-efa", "30-python", "40-libraries", "45-mpi", "50-torch"]
    common += ["80-runtime", "90-verify", "95-finish", "96-image"]
    assert steps(native) == common
    assert steps(cuda) == sorted([*common, "11-gpus", "81-runtime", "91-record"])
    others = {name.removeprefix("bootstrap/") for name in cuda if not name.startswith(STEPS)}
    assert others == {
        *("Dockerfile", "container.env", "layer.sh", "lib.sh", "versions.env", "aws-xeon/versions.env", "gpu.sh"),
        *("probe.py", "pip_settings.py", "record.py", "torch_build.py", "verify.py"),
    }
    assert cuda[f"{STEPS}50-torch"] != native[f"{STEPS}50-torch"], "each profile's own"
    assert b"--skip-kmod" in cuda[f"{STEPS}26-efa"][0], "in place of the step with the kernel module"
    assert {name: mode for name, (_, mode) in cuda.items() if mode == 0o755} == {"bootstrap/layer.sh": 0o755}


def test_a_step_is_as_a_machine_runs_it(settings: Settings) -> None:
    files = container_image.context(settings)
    for name, content, _ in user_data._scripts(user_data.BOOTSTRAP, "aws-xeon", "cuda"):
        if f"bootstrap/{name}" in files and name != "steps/image/26-efa":
            assert files[f"bootstrap/{name}"][0] == content, name


def test_whatever_is_left_out_is_there_to_be_left_out(settings: Settings) -> None:
    """A step with another name would come into the image unnoticed."""
    scripts = {
        name
        for profile in ("native", "cuda")
        for name, _, _ in user_data._scripts(user_data.BOOTSTRAP, "aws-xeon", profile)
    }
    for pattern, why in container_image.LEFT_OUT.items():
        assert any(fnmatch(name, pattern) for name in scripts), pattern
        assert why


def test_every_step_is_in_a_layer_of_the_dockerfile(settings: Settings) -> None:
    text = (ROOT / "bootstrap/container/Dockerfile").read_text()
    spans = [(int(first), int(last)) for first, last in re.findall(r"layer\.sh (\d+) (\d+)", text)]
    assert spans == sorted(spans) and all(before[1] < after[0] for before, after in itertools.pairwise(spans))
    for name in steps(container_image.context(settings)):
        assert sum(first <= int(name[:2]) <= last for first, last in spans) == 1, name
    base = re.search(r"^ARG BASE=(\S+)$", text, re.M)
    assert base and container_image._BASE.fullmatch(base[1]), "pinned by its digest"
    assert "\nENTRYPOINT []\n" in text and "\nUSER" not in text


def test_its_name_is_that_of_its_content(of: Of) -> None:
    name, files, _ = of()
    assert re.fullmatch(r"cuda-[0-9a-f]{8}", name) and of()[0] == name
    assert of(base=BASE)[0] not in (name, of(profile="native")[0])
    assert of(profile="native")[0].startswith("native-")
    files["bootstrap/lib.sh"] = (b"", 0o644)
    assert container_image.key(files, "") != name.removeprefix("cuda-")


def test_the_settings_of_the_steps(settings: Settings, tmp_path: Path) -> None:
    before = os.umask(0o077)
    container_image.write(container_image.context(settings), "cuda-0", tmp_path)
    os.umask(before)
    assert (tmp_path / "bootstrap/steps/image").stat().st_mode & 0o777 == 0o755, "anybody's in a pod"
    assert (tmp_path / "bootstrap/lib.sh").stat().st_mode & 0o777 == 0o644
    lines = (tmp_path / "bootstrap/container.env").read_text().splitlines()
    assert {"TRAINYARD_PROFILE=cuda", "TRAINYARD_GPU_ARCHITECTURE=sm_80", "TRAINYARD_IMAGE=cuda-0"} <= set(lines)
    assert {"TRAINYARD_CLUSTER=aws-xeon", "TRAINYARD_COLLECTIVES=gloo", "TRAINYARD_MODE=bake"} <= set(lines)
    assert (tmp_path / "bootstrap/layer.sh").stat().st_mode & 0o777 == 0o755
    native = container_image.context(replace(settings, profile="native"))["bootstrap/container.env"][0]
    assert b"GPU" not in native


@pytest.mark.parametrize(
    "given, message",
    [
        ({"profile": "ipex"}, "profile = 'ipex': must be cuda or native"),
        ({"base": "ubuntu:24.04"}, "base = 'ubuntu:24.04': must be an image pinned by its digest"),
        ({"base": "-x@sha256:" + "0" * 64}, "must be an image pinned"),
    ],
)
def test_what_no_image_is_made_of(given: dict[str, str], message: str, of: Of) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        of(**given)


def test_a_stack_without_kubernetes_has_no_container_image(
    good: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_file, "settings", lambda _stack: load("local", good))
    with pytest.raises(UsageError, match=r"^stack yard: cluster = 'local': .*fab images.* for a stack of aws-eks$"):
        container_image.of("yard")
