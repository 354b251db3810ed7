"""Token sets in buckets: killed processes, cut wires and full disks, against real servers over HTTP."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_servers import Server
from polling import until
from store_commands import SERVERS, done, folder_of, place, same, store

from training import manifest
from training.data import token_set
from training.manifest import TokenError
from training.store import transfer

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")
pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]
BIG = 12 * transfer.PIECE + 12345


@pytest.fixture(scope="module", params=["s3", "blobs"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of more than a hundred megabytes, with a checkpoint's kind of manifest."""
    return folder_of(tmp_path_factory.mktemp("big"), {"train.bin": BIG, "a.bin": 300_000, "b.bin": 200_000})


def test_a_killed_download_goes_on_where_it_was(cloud: Server, big: Path, tmp_path: Path) -> None:
    url, target = f"{cloud.url}/big", tmp_path / "got"
    done(store(cloud, "push", url, big))
    part = target / manifest.DOWNLOAD / "train.bin"
    cloud.wire.rate = 20e6
    process = store(cloud, "pull", url, target)
    until(lambda: part.exists() and part.stat().st_size >= 2 * transfer.PIECE)
    process.kill()
    process.communicate()
    had = part.stat().st_size
    assert had < BIG
    assert not (target / manifest.NAME).exists()
    with pytest.raises(TokenError, match="an unfinished download; the same command again finishes it"):
        token_set.open(target)
    cloud.wire.reset()
    done(store(cloud, "pull", url, target))
    assert same(big, target)
    assert cloud.wire.received < BIG - had + 2_000_000


def test_what_is_left_of_a_download_is_not_believed(s3: Server, big: Path, tmp_path: Path) -> None:
    url, target = f"{s3.url}/big-torn", tmp_path / "got"
    done(store(s3, "push", url, big))
    work = target / manifest.DOWNLOAD
    work.mkdir(parents=True)
    (work / manifest.NAME).write_bytes((big / manifest.NAME).read_bytes())
    (work / "train.bin").write_bytes(bytes(BIG // 2))  # as after a power failure
    (work / "a.bin").write_bytes(bytes(400_000))  # more than there should be
    done(store(s3, "pull", url, target))
    assert same(big, target)


def test_a_killed_upload_is_not_whole_and_goes_on(
    cloud: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"a.bin": 20_000_000, "b.bin": 20_000_000, "c.bin": 20_000_000, "d.bin": 90_000_000}
    url = f"{cloud.url}/runs/one"
    folder = tmp_path / "folder"
    folder.mkdir()
    folder_of(folder, sizes)
    there = place(cloud, url, monkeypatch)
    cloud.wire.rate = 15e6
    process = store(cloud, "push", url, folder)
    until(lambda: len(there.files()) >= 2)  # one that is whole, beside what says that more is to come
    process.kill()
    process.communicate()
    cloud.wire.reset()
    had = sum(size for name, size in there.files().items() if name in sizes)
    assert 0 < had < sum(sizes.values())
    assert done(store(cloud, "list", f"{cloud.url}/runs")) == "one\n"
    assert "not all of it has been sent" in done(store(cloud, "pull", url, tmp_path / "got"), 2)
    cloud.wire.reset()
    done(store(cloud, "push", url, folder))
    assert cloud.wire.sent < sum(sizes.values()) - had + 2_000_000
    done(store(cloud, "pull", url, tmp_path / "got"))
    assert same(folder, tmp_path / "got")
    assert transfer.SENDING not in there.files()


def test_a_wire_that_is_cut_is_said_and_gone_on_after(s3: Server, big: Path, tmp_path: Path) -> None:
    url, target = f"{s3.url}/cut", tmp_path / "got"
    done(store(s3, "push", url, big))
    s3.wire.rate = 20e6
    process = store(s3, "pull", url, target)
    part = target / manifest.DOWNLOAD / "train.bin"
    until(lambda: part.exists() and part.stat().st_size >= transfer.PIECE)
    s3.wire.cut()
    assert "no answer" in done(process, 1)
    s3.wire.reset()
    done(store(s3, "pull", url, target))
    assert same(big, target)
    assert s3.wire.received < BIG - transfer.PIECE + 2_000_000


def test_a_full_disk_is_said_before_anything_comes(s3: Server, big: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("mounting needs root")
    done(store(s3, "push", f"{s3.url}/big", big))
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        output = done(store(s3, "pull", f"{s3.url}/big", disk / "got"), 1)
        assert "the disk is full: 0.10 GB needed, 0.00 GB left" in output
    finally:
        subprocess.run(["umount", disk], check=True)
