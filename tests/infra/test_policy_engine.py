"""The policy pack under Pulumi's own engine, in previews: it is loaded, it is MANDATORY, and what is unknown is told.

The local stack is previewed as it is. The clouds' programs are, too, with a stand-in for each provider's plugin
(echo_provider.py), as those plugins are large and want an account. Nothing is made by a preview.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from planted_violations import OWN
from sample_inputs import without_stack

from fabfile.stacks import plugins

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = {"aws-xeon": "aws", "azure-xeon": "azure-native"}
SDKS = {"aws-xeon": "pulumi_aws", "azure-xeon": "pulumi_azure_native"}
Plants = dict[str, dict[str, object]]
Preview = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(shutil.which("pulumi") is None, reason="no pulumi here: its engine loads the pack"),
]


COPIED = ("infra", "bootstrap", "stacks", "tests", "Pulumi.yaml")
"""What of a checkout the program and the policies need, and the tests that run them."""


def copy_of(root: Path, into: Path) -> Path:
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, into / name)
    settings = into / "Pulumi.yaml"
    settings.write_text(settings.read_text().replace("main: infra", "main: tests/support/planted_program"))
    return into


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of(ROOT, tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def environment(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything of Pulumi's in directories of its own; the copy's modules before the checkout's."""
    home = tmp_path_factory.mktemp("pulumi")
    return {
        **without_stack(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PULUMI_HOME": str(home),
        "PULUMI_BACKEND_URL": home.as_uri(),
        "PULUMI_CONFIG_PASSPHRASE": "",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "tests" / "support")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture(scope="module")
def preview(copy: Path, environment: dict[str, str], key_file: Path) -> Iterator[Preview]:
    """Preview the stack of a kind of cluster with the pack."""
    providers = {}

    def pulumi(*argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["pulumi", *argv, "--non-interactive"],
            cwd=copy,
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=240,
        )

    def run(cluster: str, plants: Plants | None = None) -> subprocess.CompletedProcess[str]:
        pulumi("stack", "init", cluster)
        more = {"PLANTS": json.dumps(plants or {})}
        if cluster in PLUGIN:
            if cluster not in providers:
                providers[cluster] = start(cluster, copy, environment)
            more["PULUMI_DEBUG_PROVIDERS"] = f"{PLUGIN[cluster]}:{providers[cluster][1]}"
        # A cluster of the user's may have the network that the file names.
        own = OWN if cluster in PLUGIN else {"cidr": f"10.63.{os.getpid() % 250}.0/24"}
        keys = {**own, "nodes": "2", "publicKey": str(key_file)}
        config = [argument for key, value in keys.items() for argument in ("-c", f"{key}={value}")]
        pack = plugins.policy_pack().replace(str(ROOT), str(copy))
        return pulumi("preview", "--stack", cluster, "--policy-pack", pack, *config, **more)

    yield run
    for process, _ in providers.values():
        process.terminate()
        process.wait(timeout=30)


def start(cluster: str, copy: Path, environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """The stand-in for a provider's plugin, and its port."""
    argv = [sys.executable, str(copy / "tests" / "support" / "echo_provider.py"), cluster]
    process = subprocess.Popen(argv, cwd=copy, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def violations(done: subprocess.CompletedProcess[str], level: str) -> set[str]:
    """The rules that were reported at this level."""
    return {line.split()[2] for line in done.stdout.splitlines() if line.strip().startswith(f"- [{level}]")}


def test_the_local_stack_passes(preview: Preview) -> None:
    done = preview("local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trainyard@v0.1.0" in done.stdout and "+ 6 to create" in done.stdout
    assert violations(done, "mandatory") == violations(done, "advisory") == set()


def test_a_secret_in_user_data_ends_the_preview(preview: Preview) -> None:
    done = preview("local", {"node1": {"user_data": "HF_TOKEN=hf_" + "a1B2" * 9}})
    assert done.returncode != 0 and "preview failed" in done.stdout
    assert violations(done, "mandatory") == {"no-secret-in-user-data"}
    assert "user_data holds a token of Hugging Face" in done.stdout


def test_user_data_that_is_not_known_is_told(preview: Preview) -> None:
    """Not known before `up`, when the engine asks again."""
    done = preview("local", {"node1": {"user_data": "<unknown>"}})
    assert done.returncode == 0, done.stdout + done.stderr
    assert violations(done, "advisory") == {"undecided"} and violations(done, "mandatory") == set()
    assert "node1: no-secret-in-user-data: a value that decides it is not known yet" in done.stdout


UNDECIDED = {
    "aws-xeon": {"ami-pinned", "iam-no-stars", "bucket-tls-only", "bucket-policy-not-public"},
    "azure-xeon": {"image-version-pinned", "no-privileged-roles"},
}
"""Before anything is made nobody knows the golden image's id, nor what AWS calls a bucket."""


@pytest.mark.parametrize("cluster", PLUGIN)
def test_the_clouds_programs_pass_and_say_what_is_open(preview: Preview, cluster: str) -> None:
    pytest.importorskip(SDKS[cluster])
    done = preview(cluster)
    assert done.returncode == 0, done.stdout + done.stderr
    assert violations(done, "mandatory") == set() and violations(done, "advisory") == {"undecided"}
    lines = [line.split(": ") for line in done.stdout.splitlines() if line.endswith("`up` decides it")]
    assert {rule for _, rule, _ in lines} == UNDECIDED[cluster]


PLANTED: dict[str, dict[str, Plants]] = {
    "aws-xeon": {
        "imdsv2-only": {"template": {"metadataOptions.httpTokens": "optional"}},
        "bucket-versioned": {"data-versions": {"versioningConfiguration.status": "Suspended"}},
        "tagged": {"aws": {"defaultTags": None}},
    },
    "azure-xeon": {
        "trusted-launch": {"node1": {"securityProfile.uefiSettings.secureBootEnabled": False}},
        "no-ssh-from-anywhere": {"security": {"securityRules.0.sourceAddressPrefix": "Internet"}},
        "tagged": {"network": {"tags": {"trainyard-stack": "azure-xeon"}}},
    },
}
"""A rule over one resource, one over the stack, and one that reads what the provider has made of the declaration."""


@pytest.mark.parametrize("cluster", PLUGIN)
def test_violations_in_the_clouds_programs_end_the_preview(preview: Preview, cluster: str) -> None:
    pytest.importorskip(SDKS[cluster])
    plants = {name: values for plant in PLANTED[cluster].values() for name, values in plant.items()}
    done = preview(cluster, plants)
    assert done.returncode != 0 and "preview failed" in done.stdout
    assert violations(done, "mandatory") == set(PLANTED[cluster])
