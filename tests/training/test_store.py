"""Token sets in buckets: real servers over HTTP, altered bytes, addresses that lead nowhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import bucket_servers
import numpy as np
import pytest
import token_files
from bucket_servers import Server
from store_commands import SERVERS, done, folder_of, place, same, store

from training import manifest
from training.data import token_set
from training.store import bucket, transfer

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")
pytest_plugins = ["training_fixtures"]

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module", params=list(SERVERS))
def any_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token set with a vocabulary of its own, whose size the manifest does not say."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / manifest.RANKS).write_bytes(b"aGVsbG8= 0\n" * 50)
    encoding = {"name": "own", "ranks": manifest.RANKS, "sha256": manifest.checksum(folder / manifest.RANKS)}
    text = np.random.default_rng(1).integers(0, 64, 30_000)
    token_files.write(folder, train=text, val=text[:2000], vocab_size=64, encoding=encoding)
    return folder


@pytest.mark.parametrize(
    "settings, environment, region",
    [
        ("TRAINYARD_NODE=node1\nTRAINYARD_REGION=eu-west-1\n", {}, "eu-west-1"),
        ("TRAINYARD_REGION=eu-west-1\n", {"AWS_REGION": "us-west-2"}, "us-west-2"),
        ("TRAINYARD_REGION=eu-west-1\n", {"AWS_DEFAULT_REGION": "us-west-2"}, "us-west-2"),
        ("TRAINYARD_NODE=node1\n", {}, "us-east-1"),
        (None, {}, "us-east-1"),
    ],
)
def test_a_bucket_is_looked_for_in_the_machines_own_region(
    settings: str | None, environment: dict[str, str], region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the machine was told when it was made; us-east-1 is what AWS's library takes without."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_CONFIG_FILE": f"{tmp_path}/none", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bucket, "SETTINGS", tmp_path / "trainyard.env")
    if settings is not None:
        bucket.SETTINGS.write_text(settings)
    files = bucket.open_folder("s3://tokens/data")._fs
    files.connect()
    assert files.s3.meta.region_name == region


def test_a_set_goes_there_and_comes_back_as_it_was(any_server: Server, prepared: Path, tmp_path: Path) -> None:
    url = f"{any_server.url}/data/own"
    assert "complete; 0.1 MB moved, 0.0 MB already present" in done(store(any_server, "push", url, prepared))
    assert done(store(any_server, "list", f"{any_server.url}/data")) == "own\twhole\n"
    assert "complete, checksums verified; 0.1 MB moved" in done(store(any_server, "pull", url, tmp_path / "got"))
    assert same(prepared, tmp_path / "got")
    assert token_set.open(tmp_path / "got", verify=True).vocab_size == 64
    assert "0.0 MB moved, 0.1 MB already present" in done(store(any_server, "push", url, prepared))
    assert "0.0 MB moved, 0.1 MB already present" in done(store(any_server, "pull", url, tmp_path / "got"))


def test_another_set_under_the_name_is_never_mixed_with_it(
    any_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of one size and another content, and the first push was killed: none of them is taken for the second's."""
    url = f"{any_server.url}/mixed"
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, size in zip(folders, (1000, 1001), strict=True):
        folder.mkdir()
        folder_of(folder, {"a.bin": size, "b.bin": 1000})
    there = place(any_server, url, monkeypatch)
    there.write(transfer.SENDING, (folders[0] / manifest.NAME).read_bytes())
    there.write("b.bin", (folders[0] / "b.bin").read_bytes())
    transfer.push(folders[1], there)
    transfer.pull(there, tmp_path / "got")
    assert same(folders[1], tmp_path / "got")
    transfer.push(folders[0], there)
    transfer.pull(there, tmp_path / "got")  # over the other set
    assert same(folders[0], tmp_path / "got")


def test_altered_and_torn_objects_are_detected(
    any_server: Server, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, target = f"{any_server.url}/spoilt", tmp_path / "got"
    there = place(any_server, url, monkeypatch)
    transfer.push(prepared, there)
    good = (prepared / "train.bin").read_bytes()
    there.write("train.bin", good[:-1] + bytes([good[-1] ^ 1]))
    assert f"{url}/train.bin: altered: its checksum" in done(store(any_server, "pull", url, target), 1)
    there.write("train.bin", good[:-1])
    assert f"{url}: train.bin: torn or missing" in done(store(any_server, "pull", url, target), 1)
    there.write(manifest.NAME, (prepared / manifest.NAME).read_bytes()[:-9])
    assert f"{url}/manifest.json: torn or altered" in done(store(any_server, "pull", url, target), 1)
    assert not (target / manifest.NAME).exists()
    assert "0.1 MB moved" in done(store(any_server, "push", url, prepared, "--overwrite"))
    done(store(any_server, "pull", url, target))
    assert same(prepared, target)


def test_what_was_altered_here_comes_again(s3: Server, prepared: Path, tmp_path: Path) -> None:
    url, target = f"{s3.url}/repair", tmp_path / "got"
    done(store(s3, "push", url, prepared))
    done(store(s3, "pull", url, target))
    (target / "val.bin").write_bytes(bytes(4000))
    (target / manifest.RANKS).unlink()
    done(store(s3, "pull", url, target))
    assert same(prepared, target)


def test_an_altered_set_is_not_sent(s3: Server, tmp_path: Path) -> None:
    folder_of(tmp_path, {"a.bin": 1000})
    (tmp_path / "a.bin").write_bytes(bytes(1000))
    assert "a.bin: altered" in done(store(s3, "push", f"{s3.url}/altered", tmp_path), 2)
    assert done(store(s3, "list", f"{s3.url}/altered")) == "\n"


def test_nanogpt_s_bare_files_get_a_manifest(s3: Server, prepared: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("train.bin", "val.bin"):
        (bare / name).write_bytes((prepared / name).read_bytes())
    done(store(s3, "push", f"{s3.url}/bare", bare))
    done(store(s3, "pull", f"{s3.url}/bare", bare))
    read = token_set.open(bare, verify=True)
    assert (read.manifest["format"], read.encoding["name"], len(read.train)) == (manifest.FORMAT, "gpt2", 30_000)


def test_a_manifest_does_not_lead_out_of_its_folder(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = place(s3, f"{s3.url}/evil/set", monkeypatch)
    for name in ("../x", "/x", "..", ".download", "manifest.json"):
        files = {name: {"bytes": 1, "sha256": "0" * 64}}
        there.write(manifest.NAME, manifest.render({"format": 1, "files": files}).encode())
        output = done(store(s3, "pull", f"{s3.url}/evil/set", tmp_path / "got"), 1)
        assert "is not a plain file name" in output
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("url", "expected", "code"),
    [
        ("shelf/data", "not an address; allowed: s3://, abfs:// or file://", 2),
        ("ftp://shelf/data", "not an address", 2),
        ("s3://", "not an address", 2),
        ("s3://nobody/data", "there is no bucket or container nobody", 2),
        ("s3://shelf/none", "there is no such set", 2),
    ],
)
def test_an_address_that_leads_nowhere(s3: Server, tmp_path: Path, url: str, expected: str, code: int) -> None:
    assert expected in done(store(s3, "pull", url, tmp_path / "got"), code)
    assert not (tmp_path / "got" / manifest.NAME).exists()


def test_without_credentials(s3: Server, tmp_path: Path) -> None:
    without = {name: value for name, value in s3.environment.items() if "KEY" not in name}
    nobody = Server(s3.url, {**without, "HOME": str(tmp_path)}, s3.wire)
    output = done(store(nobody, "pull", f"{s3.url}/x", tmp_path / "got"), 1)
    assert "no credentials: this machine has no instance profile or managed identity" in output


def test_without_a_managed_identity(tmp_path: Path) -> None:
    nobody = Server("", {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, bucket_servers.Wire(0))
    url = "abfs://shelf@nobody.dfs.core.windows.net/x"
    assert "no credentials: this machine has no" in done(store(nobody, "pull", url, tmp_path / "got"), 1)


def test_a_folder_that_is_no_set(s3: Server, tmp_path: Path) -> None:
    assert "manifest.json: No such file" in done(store(s3, "push", f"{s3.url}/x", tmp_path), 2)
    (tmp_path / manifest.NAME).write_text(json.dumps({"files": {}}))
    assert "torn or altered" in done(store(s3, "push", f"{s3.url}/x", tmp_path), 2)
