"""Fixtures of the tests of infra."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from infra import user_data
from infra.config.settings import Settings, load


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of everything."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def wanted(good: dict[str, str]) -> Settings:
    """The settings of a good local stack."""
    return load("local", good)


@pytest.fixture
def bootstrap(tmp_path: Path) -> Path:
    """A copy of bootstrap/ to change."""
    return Path(shutil.copytree(user_data.BOOTSTRAP, tmp_path / "bootstrap"))
