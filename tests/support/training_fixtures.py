"""A small job for real ranks, and a bucket for its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bucket_servers
import pytest
from bucket_servers import Server
from gloo_ranks import TINY, tiny_tokens


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def job(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(data=data))
    return path


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with bucket_servers.s3(tmp_path_factory.mktemp("server") / "data") as server:
        yield server
