"""Fixtures of the tests of the nodes' side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from played_slurm import Slurm
from pod_api import PodApi, served


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PodApi]:
    with served(tmp_path) as api:
        yield api


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Slurm's commands, before any others in the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Slurm(folder)
