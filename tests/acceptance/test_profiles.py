"""Both profiles, installed for real: what the nodes have, and what the sealed image has no more."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from module_imports import imports
from project import ROOT, Project

from infra.clouds.local import bake, image, nodes

IN_RUNTIME = "set -a; . /etc/trainyard/runtime.env; set +a; "
PINS = dict(re.findall(r"^(\w+)=([\w.:/-]+)$", (ROOT / "bootstrap/versions.env").read_text(), re.M))


@dataclass
class Cluster:
    """One node of a profile, ready."""

    project: Project
    profile: str

    @property
    def machine(self) -> Path:
        return nodes.machine(self.project.stack, "node1").root

    @property
    def image(self) -> str:
        return str(json.loads((self.machine.parent / "spec.json").read_text())["image"])

    @property
    def ready(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.machine / "var/lib/trainyard/ready.json").read_text())
        return loaded

    def run(self, command: str) -> str:
        """A command as a rank would be run; what it printed."""
        output = self.project.fab("run", IN_RUNTIME + command).stdout
        return "\n".join(line.removeprefix("[node1] ") for line in output.splitlines())


@pytest.fixture(
    scope="module", params=["native", pytest.param("ipex", marks=[pytest.mark.acceptance, pytest.mark.soak])]
)
def cluster(request: pytest.FixtureRequest, make_shared_project: Callable[..., Project]) -> Iterator[Cluster]:
    with make_shared_project().ready(nodes=1, profile=request.param) as project:
        yield Cluster(project, request.param)


def test_a_login_finds_python_with_torch_and_its_launchers(cluster: Cluster) -> None:
    output = cluster.project.fab(
        "run", "python -c 'import torch; print(torch.__version__)'; torchrun --help; accelerate -h"
    )
    assert re.search(r"^\[node1\] 2\.\d+", output.stdout, re.M) and "usage: torchrun" in output.stdout
    assert "accelerate" in output.stdout


def test_ready_record_has_the_pinned_versions(cluster: Cluster) -> None:
    ready, profile = cluster.ready, cluster.profile
    versions = ready["versions"]
    assert (ready["profile"], ready["collectives"], ready["image"]) == (profile, "gloo", cluster.image)
    assert (ready["node"], ready["mode"]) == ("node1", "node")
    assert versions["torch"].split("+")[0] == PINS[f"TORCH_{profile}"]
    assert versions["torch"].startswith({"native": "2.13", "ipex": "2.8"}[profile])
    assert versions["accelerate"] == PINS[f"ACCELERATE_{profile}"]
    assert versions["impi"] == PINS["IMPI_VERSION"]
    assert versions.get("ipex") == (PINS["IPEX_VERSION"] if profile == "ipex" else None)
    assert all(versions[name] for name in ("python", "tiktoken", "gigatoken", "tcmalloc", "kernel", "os", "cloud-init"))
    cpu = ready["cpu"]
    assert cpu["threads"] == os.cpu_count()
    assert 1 <= cpu["cores"] <= cpu["threads"]
    assert cpu["numa_nodes"] >= 1
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1].split())  # type: ignore[index]
    expected = {"amx": {"amx_tile", "amx_bf16"}, "avx512_bf16": {"avx512_bf16"}, "avx512": {"avx512f"}}
    assert {name: cpu[name] for name in expected} == {name: needed <= flags for name, needed in expected.items()}


def test_software_works_on_the_node(cluster: Cluster) -> None:
    """Imports, tcmalloc and Intel's OpenMP in the process, the launcher, the limits: as a job's user, not as root."""
    modules = ["torch", "accelerate", "tiktoken", "gigatoken", "safetensors"]
    modules += ["intel_extension_for_pytorch"] if cluster.profile == "ipex" else []
    program = (
        f"import json, {', '.join(modules)}; "
        f"print(json.dumps([getattr(m, '__version__', '') for m in ({', '.join(modules)})])); "
        "print([l for l in ('tcmalloc', 'libiomp5') if l in open('/proc/self/maps').read()]); "
        "import resource; print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])"
    )
    lines = cluster.run(f'python -c "{program}"; mpirun --version; mpirun -n 2 hostname; id -un').splitlines()
    (versions,) = (json.loads(line) for line in lines if line.startswith('["'))
    assert versions[0].split("+")[0] == PINS[f"TORCH_{cluster.profile}"]
    assert ("['tcmalloc', 'libiomp5']" if cluster.profile == "ipex" else "['tcmalloc']") in lines
    # Root without CAP_SYS_RESOURCE cannot give more than it has: then a node has that, and its record says so.
    here = subprocess.check_output(["bash", "-c", "ulimit -l unlimited 2>/dev/null; ulimit -l"], text=True).strip()
    assert cluster.ready["limits"]["memlock"] == here
    assert ("-1" if here == "unlimited" else str(int(here) * 1024)) in lines, "memlock of a login"
    assert any(f"Version {PINS['IMPI_VERSION'].rpartition('.')[0]}" in line for line in lines), lines
    assert lines[-3:] == ["node1", "node1", "trainyard"]


def test_torch_compiles_a_model_on_the_node(cluster: Cluster) -> None:
    """train.compile needs a C++ compiler and Python's headers on every node."""
    program = "import torch; print(torch.compile(torch.nn.Linear(2, 1))(torch.ones(3, 2)).shape)"
    assert cluster.run(f"python -c '{program}'").splitlines()[-1] == "torch.Size([3, 1])"


# The sealed image.


def test_what_jobs_import_is_compiled_in_the_image(cluster: Cluster) -> None:
    """A job's user cannot store bytecode there: each rank would compile it anew. Not what a profile does without."""
    names = {
        name
        for path in (ROOT / "training").rglob("*.py")
        for name in imports(path.read_text(), "")
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "training"}
    }
    assert {"datasets", "torch.distributed.fsdp"} <= names
    program = (
        "import importlib, os, sys\n"
        f"for name in {sorted(names | {'torch.distributed.run', 'torch.distributed.checkpoint'})}:\n"
        "    try: importlib.import_module(name)\n"
        "    except ModuleNotFoundError: print('without', name)\n"
        "cached = [vars(m).get('__cached__') or '' for m in list(sys.modules.values())]\n"
        "ours = [path for path in cached if path.startswith('/opt/trainyard/venv/')]\n"
        "print(len(ours), 'modules', [path for path in ours if not os.path.exists(path)])\n"
    )
    *without, modules = cluster.run(f"python -c {shlex.quote(program)}").splitlines()
    known = {"intel_extension_for_pytorch", "oneccl_bindings_for_pytorch", "azure.identity"}
    assert {line.removeprefix("without ") for line in without} <= known
    assert re.fullmatch(r"\d{4} modules \[\]", modules), modules


def test_image_has_nothing_of_the_builder_or_the_host(cluster: Cluster) -> None:
    layer, base = image.layers(cluster.image)
    for root in (layer, base):
        machine_id = root / "etc/machine-id"
        assert not is_there(machine_id) or machine_id.read_text() == ""
        found = [str(path.relative_to(root)) for pattern in PERSONAL for path in root.glob(pattern) if is_there(path)]
        assert found == [], f"in {root}"
    for pattern in bake.SEALED:
        assert [path for path in layer.glob(pattern) if is_there(path)] == [], pattern
    # Masked in the merged root too, not only absent from the layer.
    assert not is_there(layer / "etc/apt/sources.list")


PERSONAL = (
    *("etc/ssh/ssh_host_*", "home/*/.ssh/*", "root/.ssh/*", "root/.config/*", "root/.netrc", "home/*/.config/*"),
    *("var/lib/cloud/*", "var/lib/trainyard/*", "var/lib/dbus/machine-id", "var/lib/systemd/random-seed"),
    *("var/log/cloud-init*", "var/log/trainyard*", "var/log/journal/*", "var/log/apt/term.log"),
    *("etc/trainyard.env", "etc/trainyard-host.env", "etc/pip.conf", "opt/trainyard/.uv-cache"),
    *("usr/local/share/ca-certificates/*",),
)


def is_there(path: Path) -> bool:
    """Whether there is a file; a character device 0:0 is overlayfs' mark of one that was removed."""
    return path.exists() and not (path.is_char_device() and path.stat().st_rdev == 0)


def test_image_holds_no_secret_and_no_setting_of_this_host(cluster: Cluster) -> None:
    """Walks the whole layer: no private key, no address of this host's index or proxy, not its certificates."""
    layer, _ = image.layers(cluster.image)
    words = [b"PRIVATE KEY-----\n", *host_words()]
    own = [path.read_bytes() for path in Path("/etc/ssl/certs").glob("ca-certificates.crt")]
    wrong = []
    for folder, _, names in os.walk(layer):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 2**20 or path.suffix == ".pyc":
                continue
            content = path.read_bytes()
            wrong += [f"{path}: {word!r}" for word in words if word in content]
            wrong += [f"{path}: this host's certificates" for certificates in own if certificates == content]
    assert wrong == []


def host_words() -> list[bytes]:
    """What this host's settings for pip, uv and proxies would show up as."""
    values = {value for name, value in os.environ.items() if name.startswith(bake.INHERITED)}
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    values |= {line.partition("=")[2].strip("'\"") for line in listed.splitlines()}
    return sorted({value.encode() for value in values if "://" in value})


# oneCCL's binding, which only Intel's own index has.


def index_answers() -> bool:
    """Asked as the bootstrap asks."""
    url, version = f"{PINS['INTEL_INDEX']}oneccl-bind-pt/", PINS["ONECCL_VERSION"]
    probe = [sys.executable, str(ROOT / "bootstrap/probe.py"), url, "8", version]
    try:
        return subprocess.run(probe, capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def test_ccl_is_installed_or_refused_with_the_reason(make_project: Callable[..., Project]) -> None:
    project = make_project()
    project.configure(nodes=1, memoryMb=4096, profile="ipex", collectives="ccl")
    if index_answers():
        project.fab("up", "--yes", timeout=1200)
        project.fab("wait")
        done = project.fab(
            "run", IN_RUNTIME + "python -c 'import torch, oneccl_bindings_for_pytorch as ccl; print(ccl.__version__)'"
        )
        assert PINS["ONECCL_VERSION"] in done.stdout
    else:
        began = time.monotonic()
        stderr = project.fab("up", "--yes", code=1).stderr
        # 15 s of them are the probe's own patience with an index that does not answer at all.
        assert time.monotonic() - began < 90
        assert re.search(
            rf"builder: step preflight failed: collectives 'ccl' needs oneccl-bind-pt {PINS['ONECCL_VERSION']}, "
            rf"which only Intel's wheel index has, and {re.escape(PINS['INTEL_INDEX'])} did not answer \(.+\)",
            stderr,
        ), stderr
    project.fab("destroy", "--yes")
    assert project.remaining() == []
