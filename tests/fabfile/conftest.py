"""What tests of the operator's half share: a home folder, nodes that are SSH servers here, a backend in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd
from memory_backend import MemoryBackend

from fabfile import backends, log_display


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
    monkeypatch.setattr(log_display, "_AGAIN", 0.0)
    return made
