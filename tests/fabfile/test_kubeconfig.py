"""A stack with Kubernetes whose API is out of reach: what the verbs say that need SSH; status and kubeconfig."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fab_command import fab as run_fab

from fabfile import output
from infra.inventory import KubeCluster, Node, SshCluster, to_json

CLUSTER = KubeCluster(
    name="llama",
    cluster_name="trainyard-llama-0123abcd",
    region="eu-west-1",
    endpoint="https://0123456789ABCDEF.gr7.eu-west-1.eks.amazonaws.com",
    certificate_authority="LS0tLS1CRUdJTg==",
    authentication="eks",
    namespace="trainyard",
    service_account="trainer",
    image="123456789012.dkr.ecr.eu-west-1.amazonaws.com/trainyard-llama-0123abcd",
    workers=2,
    gpus_per_worker=8,
    gpu_architecture="sm_80",
    efa_per_worker=4,
    shared_dir="/fsx",
    shared_claim="fsx",
    data_url="s3://trainyard-llama",
    hourly_usd=44.81,
)


@dataclass(frozen=True)
class Done:
    """How a verb ended, and what it printed."""

    code: int
    out: str
    err: str


Fab = Callable[..., Done]


@pytest.fixture
def fab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fab:
    """Run a verb on a cluster's inventory; the home directory is the test's folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(output, "_target", [""])  # a verb leaves its `--inventory` there

    def run(cluster: SshCluster | KubeCluster, *words: str) -> Done:
        inventory = tmp_path / "inventory.json"
        inventory.write_text(to_json(cluster))
        code = run_fab(*words, "--inventory", str(inventory))
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.mark.parametrize("words", [("run", "true"), ("ssh", "node1"), ("ssh-config",)], ids=" ".join)
def test_what_needs_ssh_says_what_there_is_instead(fab: Fab, words: tuple[str, ...]) -> None:
    done = fab(CLUSTER, *words)
    assert done.code == 2 and done.out == ""
    (line,) = done.err.splitlines()
    assert "inventory.json: kind = 'kubernetes': it has no nodes for SSH: fab kubeconfig" in line


def test_status_shows_what_the_inventory_knows_also_if_the_api_cannot_be_asked(fab: Fab) -> None:
    done = fab(CLUSTER, "status")
    assert done.code == 0, done.err
    rows = dict(line.split("  ", 1) for line in done.out.splitlines() if "  " in line)
    assert rows["WORKERS"].strip() == "2, each 8 GPUs sm_80, 4 EFA cards"
    assert rows["SHARED"].strip() == "claim fsx at /fsx" and rows["PRICE"].strip() == "$44.81/h with all workers"
    assert "not known now: " in done.out and done.out.splitlines()[-1].startswith("next: fab check")
    answer = json.loads(fab(CLUSTER, "status", "--json").out)
    assert answer["cluster_name"] == CLUSTER.cluster_name and answer["machines"] == [] and answer["api_error"]


def test_kubeconfig_names_the_api_and_a_program_that_signs_in(fab: Fab, tmp_path: Path) -> None:
    done = fab(CLUSTER, "kubeconfig")
    assert done.code == 0, done.err
    path = tmp_path / ".trainyard/llama/kubeconfig"
    assert f"export KUBECONFIG={path}" in done.out
    written = json.loads(path.read_text())
    assert written["clusters"][0]["cluster"] == {
        "server": CLUSTER.endpoint,
        "certificate-authority-data": CLUSTER.certificate_authority,
    }
    assert written["contexts"][0]["context"]["namespace"] == "trainyard"
    # As kubectl runs it: from anywhere, and with nothing but the credentials.
    program = written["users"][0]["user"]["exec"]
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_SESSION_TOKEN": "t"}
    argv = [program["command"], *program["args"]]
    assert argv[0] == sys.executable
    ran = subprocess.run(argv, capture_output=True, text=True, cwd="/", env={"PATH": os.environ["PATH"], **keys})
    assert ran.returncode == 0, ran.stderr
    credential = json.loads(ran.stdout)
    assert credential["kind"] == "ExecCredential" and credential["apiVersion"] == program["apiVersion"]
    signed = credential["status"]["token"].removeprefix("k8s-aws-v1.")
    url = urllib.parse.urlsplit(base64.urlsafe_b64decode(signed + "=" * (-len(signed) % 4)).decode())
    query = dict(urllib.parse.parse_qsl(url.query))
    assert url.netloc == "sts.eu-west-1.amazonaws.com" and query["Action"] == "GetCallerIdentity"
    assert query["X-Amz-SignedHeaders"] == "host;x-k8s-aws-id" and query["X-Amz-Expires"] == "60"
    assert CLUSTER.cluster_name not in url.query, "the name is in the header that is signed"


def test_without_credentials_the_token_is_one_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "infra.clouds.aws.eks_token", "name", "eu-west-1"]
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    ran = subprocess.run(argv, capture_output=True, text=True, env=bare)
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1
    assert "NoCredentialsError" in ran.stderr and "aws sso login" in ran.stderr


def test_only_a_cluster_of_ours_gets_a_kubeconfig(fab: Fab) -> None:
    done = fab(replace(CLUSTER, authentication="kubeconfig", kubeconfig="/a b/config"), "kubeconfig")
    assert done.code == 0 and "export KUBECONFIG='/a b/config'" in done.out
    done = fab(replace(CLUSTER, authentication="kubeconfig"), "kubeconfig")
    assert done.code == 2 and "your own kubeconfig has it" in done.err
    ssh = SshCluster(name="lab", nodes=(Node(name="node1", role="head", private_ip="10.0.0.1"),))
    done = fab(ssh, "kubeconfig")
    assert done.code == 2 and "lab: its nodes are reached over SSH" in done.err
