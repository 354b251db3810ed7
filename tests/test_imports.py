"""Who may import whom: DESIGN.md's table, held by reading every import of every module."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from module_imports import imports

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("infra", "fabfile", "node", "training", "bootstrap")

OURS = (
    *("infra.errors", "infra.config.settings", "infra.user_data", "infra.clouds.live_resource", "infra.clouds.finding"),
    *("infra.config.values", "infra.clouds.naming", "infra.clouds.dynamic_provider"),
    *("infra.state.operation", "infra.state.ownership", "infra.machine"),
    *("infra.clouds.kube_client", "infra.clouds.kube_apply", "infra.training_operator", "infra.job_account"),
    "infra.go_toolchain",
)
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # The program, the engine, and what reads configuration: never the operator's side.
    "infra": ("infra", "pulumi", "tomlkit", "yaml", "dill", "google.protobuf", "psutil", "zopfli"),
    "infra.errors": (),
    "infra.clouds.live_resource": (),
    "infra.clouds.finding": ("infra.config.values",),
    "infra.clouds.kube_client": (),
    "infra.clouds.kube_apply": ("infra.clouds.kube_client", "infra.errors"),
    "infra.clouds.sdk": ("infra.errors", "infra.config.kinds"),
    "infra.state.operation": ("infra.errors", "psutil"),
    "infra.clouds.dynamic_provider": ("infra.errors", "infra.state.operation", "pulumi"),
    "infra.prices.table": ("infra.errors",),
    "infra.config.values": ("infra.errors",),
    "infra.config.kinds": (),
    "infra.config.keys": ("infra.config.kinds", "infra.config.values"),
    "infra.config.cloud_settings": ("infra.config.keys", "infra.config.values"),
    "infra.config.settings": (
        *("infra.config.cloud_settings", "infra.config.keys"),
        *("infra.config.kinds", "infra.config.values"),
    ),
    "infra.clouds.naming": ("infra.config.settings",),
    "infra.state.ownership": ("infra.clouds.naming",),
    "infra.state.stack_record": ("infra.errors", "infra.state.ownership"),
    "infra.inventory": ("infra.inventory_types",),
    "infra.inventory_types": (),
    "infra.machine": (),
    "infra.training_operator": ("infra.errors",),
    "infra.job_account": (),
    "infra.go_toolchain": ("infra.errors",),
    "infra.user_data": (
        *("infra.errors", "infra.config.settings", "infra.config.kinds", "infra.cloud_config", "yaml", "zopfli"),
    ),
    # A provider: its own SDK, never another provider.
    "infra.clouds.local": (*OURS, "infra.clouds.local", "pulumi", "cryptography", "yaml"),
    "infra.clouds.aws": (
        *(*OURS, "infra.clouds.aws", "infra.prices.table"),
        *("pulumi", "pulumi_aws", "boto3", "botocore", "yaml"),
    ),
    "infra.clouds.azure": (*OURS, "infra.clouds.azure", "infra.prices.table", "pulumi", "pulumi_azure_native", "azure"),
    # Rules are about declarations, whoever makes them: never a provider's modules.
    "infra.policy": ("infra.policy", "infra.clouds.naming", "yaml"),
    "infra.policy.__main__": ("infra.policy", "infra.config.stack_file", "pulumi_policy"),
    "infra.clusters": (
        *(*OURS, "infra.inventory", "infra.cloud_config", "infra.prices.table", "infra.clusters", "pulumi"),
        *("infra.clouds.sdk", "infra.state.stack_id"),
        *("infra.clouds.local", "infra.clouds.aws", "infra.clouds.azure"),
    ),
    # The verbs reach Pulumi only through its command and its outputs.
    "fabfile": (
        *("fabfile", "fabric", "invoke", "paramiko", "psutil"),
        *("infra.inventory", "infra.inventory_types", "node"),
    ),
    "fabfile.backends.kubernetes": (
        *("fabfile", "invoke", "infra.inventory", "node", "yaml"),
        *("lightkube", "httpx2", "httpcore2", "wsproto"),  # imported when they are needed, and refused in one line
    ),
    "fabfile.top": ("fabfile", "infra.inventory", "invoke", "node", "paramiko", "rich"),
    "fabfile.workdir": ("fabfile", "invoke", "infra.inventory", "node", "packaging", "pathspec"),
    "fabfile.launchers": ("fabfile.launchers", "infra.inventory"),
    "fabfile.report": ("fabfile", "invoke", "infra.inventory", "node", "jinja2"),
    # The program that runs on nodes, see fabfile/remote/node_program.py.
    "node": ("node", "fabfile.launchers", "infra.inventory"),
    "node.probes": ("node", "fabfile.launchers", "infra.inventory", "torch"),
    "training": (
        *("training", "torch", "accelerate", "numpy", "safetensors"),
        *("datasets", "gigatoken", "pyarrow", "tiktoken", "tokenizers", "transformers"),
        *("fsspec", "azure.identity"),
        *("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"),
    ),
    "bootstrap": (),
    "bootstrap.aws-xeon.monitor": ("botocore", "psutil"),
    "bootstrap.cuda.torch_build": ("torch",),
    "bootstrap.verify": (
        *("torch", "accelerate", "tiktoken", "gigatoken", "safetensors", "datasets", "tokenizers"),
        *("s3fs", "adlfs", "azure.identity"),
        *("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"),
    ),
}
"""Module or package -> what it may import beside the standard library; the longest name that fits decides."""


def modules() -> dict[str, Path]:
    """Every module of the project, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def rule(name: str) -> tuple[str, ...]:
    """What a module may import: the longest entry of the table that it is in."""
    return MAY_IMPORT[max((entry for entry in MAY_IMPORT if within(name, (entry,))), key=len)]


def forbidden(source: str, name: str, known: set[str], *, is_package: bool = False) -> list[str]:
    found = set(imports(source, name, known, is_package=is_package))
    return sorted(
        entry for entry in found if entry.split(".")[0] not in sys.stdlib_module_names and not within(entry, rule(name))
    )


KNOWN = modules()


def test_a_module_imports_only_what_the_design_allows() -> None:
    """One test for all of them: as five hundred cases, pytest's own work is most of their cost."""
    wrong = []
    for name, path in KNOWN.items():
        entries = forbidden(path.read_text(), name, set(KNOWN), is_package=path.name == "__init__.py")
        if entries:
            wrong.append(f"{name} imports {entries}; it may import the standard library and {rule(name)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "name, source",
    [
        ("infra.config.settings", "import pulumi"),
        ("infra.config.settings", "def f():\n    import yaml"),
        ("infra.config.cloud_settings", "from infra.config.settings import CLUSTERS"),
        ("infra.inventory", "from infra.config.settings import Settings"),
        ("infra.clouds.local.nodes", "from infra.clouds.aws import network"),
        ("infra.clouds.local.nodes", "from ..aws import network"),
        ("infra.policy.tags", "from infra.clouds.aws import provider"),
        ("fabfile.verbs.up", "import pulumi.automation"),
        ("fabfile.verbs.up", "from infra.config import settings"),
        ("fabfile.launchers.mpirun", "from fabfile.remote.fleet import connect"),
        ("node.status", "import torch"),
        ("training.train", "from infra.inventory import Node"),
        ("bootstrap.record", "import yaml"),
        ("bootstrap.record", "import importlib\nimportlib.import_module('torch')"),
    ],
)
def test_the_rule_sees_what_it_forbids(name: str, source: str) -> None:
    assert forbidden(source, name, {*KNOWN, "infra.clouds.aws", "infra.clouds.aws.network", "infra.clouds.local"})


def test_a_file_of_the_program_shadows_no_library() -> None:
    """Pulumi puts infra/ itself first on the path: an `infra/kubernetes.py` would be imported, not the package."""
    own = {path.stem for path in (ROOT / "infra").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    libraries = {*packages_distributions(), *sys.stdlib_module_names} - {"__init__", "__main__"}
    assert own & libraries == set()


def test_azures_library_is_found_where_pulumi_runs_the_program() -> None:
    """The program and our providers run in infra/, which is the first on their path."""
    code = "import infra.clouds.azure.arm, azure.core; print(azure.core.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "infra", env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith(str(ROOT / "infra"))


@pytest.mark.parametrize(
    "module, absent",
    [("infra.inventory", "pulumi yaml fabric"), ("infra.config.settings", "pulumi yaml"), ("fabfile", "pulumi")],
)
def test_what_a_module_brings_along(module: str, absent: str) -> None:
    """The table holds for what is imported on the way, too: seen in a fresh interpreter."""
    code = f"import sys, {module}; print(*[name for name in {absent.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
