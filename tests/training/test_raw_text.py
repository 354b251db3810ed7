"""The raw text beside a token set in a bucket: real servers over HTTP, killed pushes, another text."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bucket_servers
import pytest
from bucket_servers import Server

from training import manifest
from training.data.sources import Corpus, corpus
from training.store import bucket, transfer
from training.store import raw_text as raw
from training.store.bucket import BucketFolder, StoreError

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")
SERVERS = {"directory": bucket_servers.directory, "s3": bucket_servers.s3, "blobs": bucket_servers.blobs}
COUNT = 60


@pytest.fixture(
    scope="module",
    params=["directory", *(pytest.param(kind, marks=pytest.mark.acceptance) for kind in ("s3", "blobs"))],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture
def place(server: Server, monkeypatch: pytest.MonkeyPatch) -> BucketFolder:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(raw, "PIECE", 2000)
    return bucket.open_folder(f"{server.url}/{uuid.uuid4().hex}/raw")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(COUNT):
        (texts / f"{number:03}.txt").write_text(f"{number} {'ä' * number} one sentence more.\n" * 5)
    return texts


def found(folder: Path) -> Corpus:
    return corpus([str(folder)])


def lines(folder: Path) -> list[str]:
    files = sorted(folder.glob("text-*.jsonl.gz"))
    return [json.loads(line)["text"] for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]


def test_all_of_the_text_comes_back_verified(place: BucketFolder, folder: Path, tmp_path: Path) -> None:
    content = raw.push(found(folder), place)
    assert transfer.complete_manifest(place) and content["lines"] == COUNT and len(content["files"]) > 3
    transfer.pull(place, tmp_path / "back")
    assert lines(tmp_path / "back") == [path.read_text() for path in sorted(folder.iterdir())]
    assert content["bytes_of_text"] == sum(path.stat().st_size for path in folder.iterdir())
    assert raw.summary(content, place.url).startswith(f"{place.url}: complete; 0.02 MB of text in 60 lines, 0.")


def test_a_killed_push_goes_on_behind_what_has_arrived(
    place: BucketFolder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    original = BucketFolder.write

    def write(self: BucketFolder, name: str, data: bytes) -> None:
        if name.startswith("text-"):
            if len(sent) == 4:
                raise StoreError("killed")
            sent.append(name)
        original(self, name, data)

    monkeypatch.setattr(BucketFolder, "write", write)
    monkeypatch.setattr(raw, "AT_ONCE", 1)
    with pytest.raises(StoreError, match="killed"):
        raw.push(found(folder), place)
    assert not transfer.complete_manifest(place) and sent == [f"text-{n:05}.jsonl.gz" for n in range(4)]
    again: list[str] = []

    def write_on(self: BucketFolder, name: str, data: bytes) -> None:
        again.append(name)
        original(self, name, data)

    monkeypatch.setattr(BucketFolder, "write", write_on)
    content = raw.push(found(folder), place)
    assert [name for name in again if name.startswith("text-")] == [
        f"text-{n:05}.jsonl.gz" for n in range(4, len(content["files"]))
    ]
    assert transfer.complete_manifest(place) and content["lines"] == COUNT and place.read(transfer.SENDING) is None


def test_another_text_begins_anew(place: BucketFolder, folder: Path) -> None:
    first = raw.push(found(folder), place)
    (folder / "more.txt").write_text("another")
    second = raw.push(found(folder), place)
    assert second["lines"] == first["lines"] + 1 and transfer.complete_manifest(place)


@pytest.mark.parametrize("same", [True, False])
def test_it_must_be_the_text_that_the_tokens_were_made_from(
    place: BucketFolder, folder: Path, same: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = bucket.open_folder(place.url.removesuffix("/raw"))
    source: dict[str, Any] = found(folder).describe() if same else {**found(folder).describe(), "bytes": 1}
    tokens.write(manifest.NAME, manifest.render({"source": source}).encode())
    code = raw.main([place.url, "--tokens", tokens.url, str(folder)])
    captured = capsys.readouterr()
    assert code == (0 if same else 2)
    assert bool(transfer.complete_manifest(place)) is same
    assert same or "was made from another text than" in captured.err


def test_a_source_that_is_not_there_is_one_line(
    place: BucketFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raw.main([place.url, "--tokens", place.url, str(tmp_path / "nothing/*.txt")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
