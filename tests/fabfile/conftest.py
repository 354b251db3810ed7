"""What tests of the operator's half share: a home folder, and nodes that are SSH servers here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd


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
