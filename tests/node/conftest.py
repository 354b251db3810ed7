"""Fixtures of the tests of the nodes' side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pod_api import PodApi, served


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PodApi]:
    with served(tmp_path) as api:
        yield api
