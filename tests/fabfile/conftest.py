"""What tests of the operator's half share: a home folder, nodes that are SSH servers here, a
backend in memory, a Kubernetes API."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sshd
from kube_cluster import Kube, served
from memory_backend import MemoryBackend

from fabfile import backends, job_file, log_display
from fabfile.backends.kubernetes import backend as on_kubernetes
from fabfile.backends.kubernetes.backend import KubernetesBackend

_resolved: dict[tuple[object, ...], subprocess.CompletedProcess[str]] = {}
"""By the command line and the job file's content."""


@pytest.fixture(autouse=True)
def resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the trainer's process that resolves a job once for each job file and its overrides."""

    def run(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        job = Path(argv[3])
        key = (*argv, job.read_bytes() if job.is_file() else b"")
        if key not in _resolved:
            _resolved[key] = subprocess.run(argv, **options)
        return _resolved[key]

    monkeypatch.setattr(job_file, "subprocess", SimpleNamespace(run=run))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ho me"  # paths with spaces are paths too
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def yard(home: Path, tmp_path: Path) -> Iterator[sshd.Yard]:
    sshd.require()
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    yield yard
    yard.stop()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> MemoryBackend:
    """What the verbs of jobs get as their backend, whatever stack or inventory is named."""
    made = MemoryBackend()
    monkeypatch.setattr(backends, "connect", lambda _stack, _inventory: made)
    monkeypatch.setattr(backends, "of", lambda _cluster, _timeout=10: made)
    monkeypatch.setattr(log_display, "_AGAIN", 0.0)
    return made


@pytest.fixture(scope="module")
def kube_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with served(tmp_path_factory.mktemp("kube")) as made:
        yield made


@pytest.fixture
def kube(kube_server: Kube) -> Kube:
    """A Kubernetes API without objects."""
    kube_server.clear()
    return kube_server


@pytest.fixture
def kube_backend(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesBackend]:
    """The jobs of that cluster, of which the API is asked quickly."""
    monkeypatch.setattr(on_kubernetes, "_LOOK", 0.1)
    monkeypatch.setattr(on_kubernetes, "_LOOK_BEGUN", 0.1)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    made = KubernetesBackend(kube.cluster)
    with made:
        yield made
