"""Fixtures of the tests of infra."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of everything."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    return tmp_path
