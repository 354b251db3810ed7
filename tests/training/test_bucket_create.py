"""A file that is written once: of several writers at the same time exactly one is first, in every kind of bucket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")

import bucket_servers

from training.store import bucket

KINDS = {"directory": bucket_servers.directory, "s3": bucket_servers.s3, "blobs": bucket_servers.blobs}
SERVERS = [pytest.param(kind, marks=pytest.mark.acceptance) for kind in ("s3", "blobs")]


@pytest.fixture(params=["directory", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with KINDS[request.param](tmp_path / "server") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server.url


def test_one_writer_is_the_first_and_the_others_know_it(url: str) -> None:
    def write(number: int) -> bool:
        return bucket.open_folder(f"{url}/meeting/round-000001").create("done.json", f"{number}".encode() * 1000)

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(write, range(6)))
    assert won.count(True) == 1
    place = bucket.open_folder(f"{url}/meeting/round-000001")
    assert place.read("done.json") == f"{won.index(True)}".encode() * 1000
    assert place.files() == {"done.json": 1000}
    assert not place.create("done.json", b"later")
