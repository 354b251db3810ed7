"""bootstrap/'s scripts, versions and cloud-config, as text."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from bootstrap_runner import BOOTSTRAP

BUCKETS = {f"{cluster}/versions.env": "BUCKET_cloud" for cluster in ("aws-xeon", "azure-xeon")}


def pins(file: str = "versions.env") -> dict[str, str]:
    """The versions as a shell reads them."""
    command = f'set -a; . "{BOOTSTRAP}/{file}"; env -0'
    done = subprocess.run(["bash", "-c", command], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    pairs = (item.split("=", 1) for item in done.stdout.decode().rstrip("\0").split("\0"))
    return {key: value for key, value in pairs if key.isupper() or "_" in key}


def requirement_lists() -> list[str]:
    values = pins()
    return [values["COMMON_REQUIREMENTS"], values["BUCKET_both"], *(pins(file)[name] for file, name in BUCKETS.items())]


def test_scripts_run_and_stop_at_the_first_error() -> None:
    for path in BOOTSTRAP.glob("*.sh"):
        if path.name != "lib.sh":
            assert os.access(path, os.X_OK), f"{path} is not executable"
            assert "set -euo pipefail" in path.read_text(), path


def test_steps_are_numbered_uniquely_and_named_once() -> None:
    names = [path.name for path in BOOTSTRAP.glob("steps/*/*")]
    assert all(re.fullmatch(r"\d\d-[a-z]+", name) for name in names), names
    assert len({name[3:] for name in names}) == len(names)


def test_every_requirement_is_pinned() -> None:
    values = pins()
    for text in requirement_lists():
        lines = text.split("\n")[1:-1]
        assert lines == sorted(lines)
        assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines), lines
    for key, value in values.items():
        if key.endswith("_VERSION") or key.startswith(("TORCH_n", "TORCH_i", "ACCELERATE_")):
            assert re.fullmatch(r"[0-9]+(\.[0-9]+)+", value), key
    assert re.fullmatch(r"[0-9a-f]{64}", values["IMPI_SHA256"])


@pytest.mark.parametrize(
    ("cluster", "brings", "leaves"),
    [
        ("aws-xeon", {"s3fs", "botocore", "aiohttp"}, {"adlfs"}),
        ("azure-xeon", {"adlfs", "azure-identity", "aiohttp"}, {"s3fs"}),
        ("local", set(), {"s3fs", "adlfs", "aiohttp"}),
    ],
)
def test_a_node_gets_its_own_cloud_s_bucket(tmp_path: Path, cluster: str, brings: set[str], leaves: set[str]) -> None:
    """Each package once: two pins of one would not install."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/uv").write_text(f"#!/bin/sh\ncat >{tmp_path}/asked\n")
    (tmp_path / "bin/uv").chmod(0o755)
    # A VENV of the test's own, with a uv that only records its input.
    shell = f'set -eu; . "{BOOTSTRAP}/lib.sh"; VENV={tmp_path}; . "{BOOTSTRAP}/steps/image/40-libraries"'
    environment = {"PATH": os.environ["PATH"], "BOOTSTRAP": str(BOOTSTRAP), "TRAINYARD_PROFILE": "native"}
    done = subprocess.run(["bash", "-c", shell], env={**environment, "TRAINYARD_CLUSTER": cluster}, capture_output=True)
    assert done.returncode == 0, done.stderr
    names = [line.partition("==")[0] for line in (tmp_path / "asked").read_text().split()]
    assert len(names) == len(set(names))
    assert brings | {"fsspec", "accelerate"} <= set(names)
    assert not leaves & set(names)


def test_the_tests_run_what_a_node_has() -> None:
    """The versions of the environment that these tests run in are those of versions.env."""

    wanted = dict(line.split("==") for text in requirement_lists() for line in text.split())
    dev = tomllib.loads((BOOTSTRAP.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    pinned = dict(item.split("==") for item in dev if "==" in item)
    both = {name: version for name, version in wanted.items() if name in pinned}
    assert both.keys() >= {"s3fs", "adlfs", "tensorboard", "datasets"}
    assert both == {name: pinned[name] for name in both}
    assert metadata.version("protobuf") == wanted["protobuf"]


def test_no_step_installs_what_is_not_pinned() -> None:
    for path in BOOTSTRAP.glob("steps/*/*"):
        for package in re.findall(r'"([a-z][a-z0-9-]+)==([^"]*)"', path.read_text()):
            assert package[1].startswith("$"), f"{path}: the version of {package[0]} belongs in versions.env"


def test_cloud_config_is_static_and_says_the_essentials() -> None:
    text = (BOOTSTRAP / "cloud-config.yaml").read_text()
    assert text.startswith("#cloud-config\n")
    assert not re.search(r"\{\{|\{%|\$\{|## template", text)
    config = yaml.safe_load(text)
    (user,) = config["users"]
    assert user["name"] == "trainyard"
    assert user["lock_passwd"] is True
    assert "ssh_authorized_keys" not in user
    assert (config["ssh_pwauth"], config["disable_root"], config["ssh_deletekeys"]) == (False, True, False)
    assert config["package_upgrade"] is False
    assert any("--no-block" in str(command) for command in config["runcmd"])
