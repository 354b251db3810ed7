"""`fab image`: build, push and list, with stand-ins for the tools and a moto server's ECR."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import boto3
import module_here
import moto_cloud
import pytest
from container_tools import Tools
from fab_command import fab
from invoke.exceptions import Exit

from fabfile.container import pip_settings, repository
from fabfile.stacks import pulumi_cli
from infra.clouds.aws import api
from infra.config import stack_file
from infra.inventory import KubeCluster, Node, SshCluster, to_json

NAME = "trainyard-llama-0123abcd-images"
ADDRESS = f"{moto_cloud.ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{NAME}"
CLUSTER = KubeCluster(
    name="llama",
    cluster_name="trainyard-llama-0123abcd",
    region="us-east-1",
    endpoint="https://0123456789ABCDEF.gr7.us-east-1.eks.amazonaws.com",
    certificate_authority="LS0tLS1CRUdJTg==",
    authentication="eks",
    namespace="trainyard",
    image=ADDRESS,
    workers=2,
    gpus_per_worker=8,
)
KIND = "application/vnd.oci.image.manifest.v1+json"
BASE = "registry.example.org/debian@sha256:" + "0" * 64


@dataclass(frozen=True)
class Operator:
    """Somebody with a stack of Kubernetes, tools and an account."""

    tools: Tools
    capfd: pytest.CaptureFixture[str]

    def fab(self, *words: str, stack: str = "aws-eks") -> str:
        """What a verb that succeeds prints."""
        self.capfd.readouterr()
        code = fab("image", *words, "--stack", stack)
        said = self.capfd.readouterr()
        assert code == 0, said.err
        return said.out

    def refused(self, *words: str, code: int = 2, stack: str = "aws-eks") -> str:
        """The one line of a verb that fails."""
        self.capfd.readouterr()
        assert fab("image", *words, "--stack", stack) == code
        said = self.capfd.readouterr()
        assert code == 1 or len(said.err.splitlines()) == 1, said.err
        return said.err


READ_PIPS_SETTINGS = pip_settings.read
"""What reads them, which takes a process of pip."""


@pytest.fixture
def operator(
    key_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Operator]:
    """With a stack aws-eks, and a pip without settings."""
    monkeypatch.setattr(pulumi_cli, "ask", module_here.ask)
    monkeypatch.setattr(pulumi_cli, "stack_output", lambda _stack: to_json(CLUSTER))
    monkeypatch.setattr(stack_file, "settings", lambda stack: moto_cloud.settings_of(stack, str(key_file)))
    monkeypatch.setattr(pip_settings, "read", lambda _python: {})
    tools = Tools(home / "tools", "podman")
    monkeypatch.setenv("PATH", f"{tools.bin}{os.pathsep}{os.environ['PATH']}")
    for name in ("SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with moto_cloud.aws(monkeypatch):
        boto3.client("ecr").create_repository(repositoryName=NAME, imageTagMutability="IMMUTABLE")
        yield Operator(tools, capfd)


def put(tag: str) -> None:
    """An image that somebody else has pushed."""
    manifest = {"schemaVersion": 2, "mediaType": KIND, "config": {"digest": f"sha256:{tag}", "size": 1}, "layers": []}
    boto3.client("ecr").put_image(repositoryName=NAME, imageManifest=json.dumps(manifest), imageTag=tag)


def test_from_a_checkout_to_the_image_that_jobs_take(operator: Operator) -> None:
    out = operator.fab("build")
    assert "built by podman; some 10 minutes" in out and "STEP 1/9" in out, "the tool's own progress is shown"
    assert out.splitlines()[-1] == "next: fab image --stack aws-eks push"
    (build,) = operator.tools.called("build")
    assert build["argv"][1:3] == ["--platform", "linux/amd64"], "the nodes', whatever this machine is"
    assert {"Dockerfile", "bootstrap/layer.sh", "bootstrap/steps/image/50-torch"} <= set(build["context"])
    assert not Path(build["argv"][-1]).exists(), "the context is gone"

    out = operator.fab("push")
    (row,) = json.loads(operator.fab("list", "--json"))
    assert row["tag"].startswith("cuda-") and row["tag"].endswith("-11111111") and row["taken"] is True
    assert f"image {row['tag']}: in the repository as {row['digest']}" in out
    assert out.splitlines()[-1] == f"jobs that start from now on take {row['tag']}, the newest of profile cuda"
    (push,) = operator.tools.called("push")
    assert push["argv"][-2:] == [build["argv"][build["argv"].index("--tag") + 1], f"docker://{ADDRESS}:{row['tag']}"]
    assert not Path(push["argv"][2]).exists(), "nobody stays logged in"
    assert repository.job_image(CLUSTER) == f"{ADDRESS}@{row['digest']}"

    assert "in the repository as" in operator.fab("push") and len(operator.tools.called("push")) == 1, "it is there"


def test_jobs_take_the_newest_of_their_machines_profile(operator: Operator) -> None:
    first, second, native = "cuda-00000000-1", "cuda-00000000-2", "native-00000000-3"
    for tag in (first, second, native):
        put(tag)
        time.sleep(1.1)  # ECR's clock has seconds
    lines = operator.fab("list").splitlines()
    assert lines[0].startswith(f"{ADDRESS}: 0.0 GB in 3 images")
    assert [line.split()[0] for line in lines[1:5]] == ["TAG", native, second, first]
    assert [line.split()[-1] for line in lines[2:5]] == ["-", "yes", "-"]
    digests = {row["tag"]: row["digest"] for row in json.loads(operator.fab("list", "--json"))}
    assert repository.job_image(CLUSTER) == f"{ADDRESS}@{digests[second]}"
    assert repository.job_image(replace(CLUSTER, gpus_per_worker=0)) == f"{ADDRESS}@{digests[native]}"


def test_docker_pushes_where_its_daemon_is_and_logs_nobody_in(operator: Operator) -> None:
    operator.tools.add("docker")
    assert "built by docker" in operator.fab("build", "--tool", "docker")
    assert operator.tools.called("build")[0]["environment"]["DOCKER_BUILDKIT"] == "1"
    operator.fab("push", "--tool", "docker")
    (push,) = operator.tools.called("push")
    assert push["environment"]["DOCKER_HOST"] == "unix:///run/user/1000/docker.sock"
    assert not Path(push["environment"]["DOCKER_CONFIG"]).exists()
    names = [name.partition(":")[0] for name in operator.tools.images("docker")]
    assert names == ["localhost/trainyard"], "the repository's name is taken off again"


def test_buildah_does_it_too(operator: Operator) -> None:
    operator.tools.add("buildah")
    operator.fab("build", "--tool", "buildah")
    (build,) = operator.tools.called("build")
    assert "--layers" in build["argv"] and "--no-cache" not in build["argv"]
    assert "in the repository as sha256:" in operator.fab("push", "--tool", "buildah")
    assert {note["tool"] for note in operator.tools.called()} == {"buildah"}


def test_the_first_tool_that_works_is_taken_and_the_reasons_are_told(operator: Operator) -> None:
    operator.tools.fail("podman", "info", "Cannot connect to Podman: run podman machine start")
    operator.tools.add("buildah")
    operator.tools.fail("buildah", "info", "no")
    operator.tools.add("docker")
    assert "built by docker" in operator.fab("build")
    operator.tools.fail("docker", "buildx", "docker: 'buildx' is not a docker command.")
    assert "docker does not work: docker: 'buildx' is not a docker command" in operator.refused("build")
    operator.tools.fail("docker", "version", "Cannot connect to the Docker daemon")
    line = operator.refused("build")
    assert line.startswith("nothing here builds container images: podman does not work: Cannot connect to Podman")
    assert "docker does not work: Cannot connect to the Docker daemon" in line
    assert "--tool kaniko: allowed: podman, buildah, docker" in operator.refused("build", "--tool", "kaniko")


def test_a_build_finds_packages_as_this_machine_does(
    operator: Operator, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip_settings, "read", READ_PIPS_SETTINGS)
    own = home / "pip.conf"
    own.write_text("[global]\nindex-url = https://me:secret@pip.example.org/simple\ncert = /my/ca.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(own))
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    (home / "ca.pem").write_text("certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(home / "ca.pem"))
    operator.fab("build", "--base", BASE, "--fresh")
    (build,) = operator.tools.called("build")
    assert "index-url = https://me:secret@pip.example.org/simple" in build["secrets"]["pip"]
    assert "--no-cache" in build["argv"]
    assert "/my/ca.pem" not in build["secrets"]["pip"] and build["secrets"]["ca"] == "certificates"
    arguments = [build["argv"][n + 1] for n, word in enumerate(build["argv"]) if word == "--build-arg"]
    assert arguments == [f"BASE={BASE}", "https_proxy"] and "secret@" not in " ".join(build["argv"])
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.delenv("PIP_CERT", raising=False)
    assert "/my/ca.pem: the certificates of SSL_CERT_FILE, or of pip's settings: no such" in operator.refused("build")


def test_what_fails_says_where(operator: Operator) -> None:
    operator.tools.fail("podman", "build", "== step torch failed: cannot install torch 2.13.0")
    said = operator.refused("build", code=1)
    assert "the image was not built: podman build ended with exit code 1, see above" in said
    assert "podman has no image localhost/trainyard:cuda-" in operator.refused("push")
    (operator.tools.home / "podman.build").unlink()
    operator.fab("build")
    operator.tools.fail("podman", "push", "denied")
    assert "the image was not pushed: podman push" in operator.refused("push", code=1)
    assert json.loads(operator.fab("list", "--json")) == []


def test_before_the_first_push_the_next_step_is_named(operator: Operator) -> None:
    out = operator.fab("list")
    assert "no image of profile cuda: jobs cannot start" in out and "next: fab image --stack aws-eks build" in out
    with pytest.raises(Exit, match="no image of profile cuda; make one: fab image build, then fab image push") as no:
        repository.job_image(CLUSTER)
    assert no.value.code == 2


def test_a_repository_that_is_gone_or_credentials_that_are_not_there(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    boto3.client("ecr").delete_repository(repositoryName=NAME)
    line = operator.refused("list", code=1)
    assert f"the repository {NAME} in us-east-1" in line and "RepositoryNotFoundException" in line
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    boto3.setup_default_session()  # the earlier one remembers them, and so do its clients
    api.client.cache_clear()
    assert "no AWS credentials" in operator.refused("list")


@pytest.mark.parametrize("image", [f"{ADDRESS}:one", f"{ADDRESS}@sha256:{'0' * 64}", "registry:5000/team/llama:1"])
def test_an_inventory_that_names_an_image_is_taken_at_its_word(image: str, tmp_path: Path, home: Path) -> None:
    """Nobody is asked: there is no account here."""
    assert repository.job_image(replace(CLUSTER, image=image)) == image
    with pytest.raises(Exit, match="names the image of its jobs") as no:
        repository.pushed(replace(CLUSTER, image=image))
    assert no.value.code == 2


@pytest.mark.parametrize(
    "words, message",
    [
        ((), "build, push or list is missing (the golden images of nodes: fab images)"),
        (("pull",), "'pull': allowed: build, push, list (the golden images of nodes: fab images)"),
        (("build", "--profile", "ipex"), "profile = 'ipex': must be cuda or native"),
        (("build", "--base", "ubuntu"), "base = 'ubuntu': must be an image pinned by its digest"),
        (("build", "--json"), "--json: goes with list alone"),
    ],
    ids=str,
)
def test_bad_input(words: tuple[str, ...], message: str, operator: Operator) -> None:
    assert message in operator.refused(*words)
    assert operator.tools.called() == []


def test_only_a_cluster_of_kubernetes_has_one(home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "inventory.json"
    file.write_text(to_json(SshCluster(name="lab", nodes=(Node(name="node1", role="head", private_ip="10.0.0.1"),))))
    assert fab("image", "list", "--inventory", str(file)) == 2
    assert "lab: its jobs run on its nodes, in no container; their images: fab images" in capfd.readouterr().err
    assert fab("image", "push", "--inventory", str(file)) == 2
    assert "takes a stack" in capfd.readouterr().err


@pytest.fixture
def checkout(tmp_path: Path, key_file: Path) -> Path:
    """A copy of the checkout whose stack aws-eks is configured."""
    root = tmp_path / "checkout"
    for name in ("infra", "stacks", "bootstrap"):
        shutil.copytree(pulumi_cli.ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(pulumi_cli.ROOT / "Pulumi.yaml", root)
    own = {"publicKey": key_file, "adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
    file = root / "stacks/Pulumi.aws-eks.yaml"
    keys = "".join(f"  trainyard:{key}: {value}\n" for key, value in own.items())
    file.write_text(file.read_text().replace("config:\n", f"config:\n{keys}"))
    return root


def test_a_build_can_be_interrupted(operator: Operator, checkout: Path, home: Path) -> None:
    """By Ctrl-C for this process alone, as without a terminal: the tool gets it, and no folder stays."""
    (operator.tools.home / "slow").touch()
    places = {"HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(pulumi_cli.ROOT)}
    code = (
        "import sys; from pathlib import Path; from fabfile.stacks import pulumi_cli; from fabfile import program\n"
        f"pulumi_cli.ROOT = Path({str(checkout)!r}); sys.exit(program.run(('image', 'build', '--stack', 'aws-eks')))"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, env={**os.environ, **places}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "STEP 1/9" not in process.stdout.readline():
            assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130 and time.monotonic() - began < 20
    assert not list(home.glob("trainyard-image-*"))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (
            "[global]\nindex-url = https://a/simple\nextra-index-url =\n    https://a\n    https://b\n"
            "[install]\nindex-url = https://b/simple\n",
            {"index-url": "https://b/simple", "extra-index-url": "https://a\nhttps://b"},
        ),
        ("[global]\nquiet = 1\nfind-links = /wheels\n[list]\nformat = json\n", {}),
    ],
)
def test_pips_settings(
    own: str, expected: dict[str, str], tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))

    def taken() -> dict[str, str]:
        settings = pip_settings.read(sys.executable)
        keys = ("index-url", "extra-index-url", "find-links")
        return {key: value for key, value in settings.items() if key in keys}

    file.write_text(own)
    assert taken() == expected
    file.write_text(pip_settings.text(expected))
    assert taken() == expected, "as pip reads it again"


def test_pips_settings_are_not_those_of_a_folder_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip").mkdir()
    for name in ("__init__.py", "__main__.py"):
        (tmp_path / "pip" / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    pip_settings.read(sys.executable)
    assert not (tmp_path / "ran").exists()
