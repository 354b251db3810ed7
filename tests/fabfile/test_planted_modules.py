"""Programs that the operator's side starts: a module of the same name in the current folder is never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fabfile import job_file
from fabfile.backends.kubernetes.credentials import kubeconfig_of
from fabfile.container import pip_settings
from fabfile.stacks import pulumi_cli
from infra.inventory import KubeCluster

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
CLUSTER = KubeCluster(
    name="llama",
    cluster_name="trainyard-llama",
    region="eu-west-1",
    endpoint="https://0123456789ABCDEF.gr7.eu-west-1.eks.amazonaws.com",
    certificate_authority="LS0tLS1CRUdJTg==",
    authentication="eks",
    namespace="trainyard",
    image="123456789012.dkr.ecr.eu-west-1.amazonaws.com/trainyard-llama",
    workers=2,
    gpus_per_worker=8,
    shared_dir="/fsx",
    shared_claim="fsx",
)
PLANTED = ("infra", "fabfile", "node", "training", "pip", "boto3", "json", "runpy", "argparse", "invoke")


@pytest.fixture
def resolved_once() -> None:
    """Override the one that starts no process for a job that another test has resolved."""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a module writes which is run from the current folder: one of these was fetched with a job, say."""
    canary = tmp_path / "canary"
    here = tmp_path / "here"
    for name in PLANTED:
        (here / name).mkdir(parents=True)
        for file in ("__init__.py", "__main__.py"):
            (here / name / file).write_text(f"open({str(canary)!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(here)
    return canary


@pytest.fixture(params=["", ":."])
def python_path(request: pytest.FixtureRequest, canary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PYTHONPATH that names the current folder in both ways, an empty entry and a dot; or none."""
    if request.param:
        monkeypatch.setenv("PYTHONPATH", request.param)
    else:
        monkeypatch.delenv("PYTHONPATH", raising=False)


def test_a_planted_module_is_run_by_python_as_it_is(canary: Path) -> None:
    """What the others are about: the canary tells."""
    subprocess.run([sys.executable, "-m", "infra.clouds.aws.eks_token"], capture_output=True, check=False)
    assert "infra" in canary.read_text()


@pytest.mark.usefixtures("python_path")
def test_the_sign_in_to_eks_runs_this_checkouts_program(canary: Path) -> None:
    program = kubeconfig_of(CLUSTER)["users"][0]["user"]["exec"]
    argv = [program["command"], *program["args"]]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **KEYS}, check=False)
    assert done.returncode == 0 and "k8s-aws-v1." in done.stdout, done.stderr
    assert not canary.exists()


@pytest.mark.usefixtures("python_path")
def test_pips_settings_are_read_by_pip(canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\ntimeout = 7\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    assert pip_settings.read(sys.executable)["timeout"] == "7"
    assert not canary.exists()


@pytest.mark.usefixtures("python_path")
def test_a_module_of_infra_is_run_from_the_checkout(canary: Path) -> None:
    assert pulumi_cli.answer("config.summary", "local")["cluster"] == "local"
    assert not canary.exists()


@pytest.mark.usefixtures("python_path")
def test_a_verb_is_run_from_the_checkout(canary: Path) -> None:
    from fabfile.verbs import demo

    assert "trainyard" in pulumi_cli.ask([*demo.FAB, "--version"]).lower()
    assert not canary.exists()


@pytest.mark.usefixtures("python_path")
def test_a_job_is_read_by_the_checkouts_trainer(canary: Path) -> None:
    assert job_file.resolve("demo", [], 1).name == "demo"
    assert not canary.exists()
