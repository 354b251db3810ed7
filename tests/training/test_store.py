"""Token sets in buckets: real servers over HTTP, killed processes, cut wires, altered bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bucket_servers
import numpy as np
import pytest
import token_files
from bucket_servers import Server
from gloo_ranks import wait_for

from training import manifest
from training.data import token_set
from training.store import bucket, download, transfer

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")
pytest_plugins = ["training_fixtures"]
SERVERS = {"directory": bucket_servers.directory, "s3": bucket_servers.s3, "blobs": bucket_servers.blobs}
ROOT = Path(__file__).resolve().parents[2]
BIG = 12 * download.PIECE + 12345


@pytest.fixture(scope="module", params=list(SERVERS))
def any_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="module", params=["s3", "blobs"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
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


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of more than a hundred megabytes, with a checkpoint's kind of manifest."""
    return folder_of(tmp_path_factory.mktemp("big"), {"train.bin": BIG, "a.bin": 300_000, "b.bin": 200_000})


@pytest.mark.parametrize(
    "told, environment, region",
    [
        ("TRAINYARD_NODE=node1\nTRAINYARD_REGION=eu-west-1\n", {}, "eu-west-1"),
        ("TRAINYARD_REGION=eu-west-1\n", {"AWS_REGION": "us-west-2"}, "us-west-2"),
        ("TRAINYARD_REGION=eu-west-1\n", {"AWS_DEFAULT_REGION": "us-west-2"}, "us-west-2"),
        ("TRAINYARD_NODE=node1\n", {}, "us-east-1"),
        (None, {}, "us-east-1"),
    ],
)
def test_a_bucket_is_looked_for_in_the_machines_own_region(
    told: str | None, environment: dict[str, str], region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the machine was told when it was made; us-east-1 is what AWS's library takes without."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_CONFIG_FILE": f"{tmp_path}/none", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bucket, "SETTINGS", tmp_path / "trainyard.env")
    if told is not None:
        bucket.SETTINGS.write_text(told)
    files = bucket.place("s3://tokens/data")._fs
    files.connect()
    assert files.s3.meta.region_name == region


def folder_of(folder: Path, sizes: dict[str, int]) -> Path:
    random = np.random.default_rng(2)
    listed = {}
    for name, size in sizes.items():
        (folder / name).write_bytes(random.bytes(size))
        listed[name] = {"bytes": size, "sha256": manifest.checksum(folder / name)}
    manifest.publish(folder / manifest.NAME, manifest.render({"format": 1, "files": listed}))
    return folder


def store(server: Server, *arguments: str | Path) -> subprocess.Popen[str]:
    """The command, as on a node."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZURE_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "training.store", *map(str, arguments)],
        cwd=ROOT,
        env={**environment, **server.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str], code: int = 0) -> str:
    """What it said, once it has ended as it should."""
    out, err = process.communicate(timeout=150)
    assert process.returncode == code, f"{out}\n{err}"
    assert "Traceback" not in err
    if code:
        assert err.startswith("error: ") and err.count("\n") == 1, err
    return out + err


def place(server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> bucket.Place:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return bucket.place(url)


def same(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def test_a_set_goes_there_and_comes_back_as_it_was(any_server: Server, prepared: Path, tmp_path: Path) -> None:
    url = f"{any_server.url}/data/own"
    assert "whole; 0.1 MB moved, 0.0 MB were there" in done(store(any_server, "push", url, prepared))
    assert done(store(any_server, "list", f"{any_server.url}/data")) == "own\twhole\n"
    assert "whole, checksums verified; 0.1 MB moved" in done(store(any_server, "pull", url, tmp_path / "got"))
    assert same(prepared, tmp_path / "got")
    assert token_set.open(tmp_path / "got", verify=True).vocab_size == 64
    assert "0.0 MB moved, 0.1 MB were there" in done(store(any_server, "push", url, prepared))
    assert "0.0 MB moved, 0.1 MB were there" in done(store(any_server, "pull", url, tmp_path / "got"))


@pytest.mark.faults
def test_a_killed_download_goes_on_where_it_was(cloud: Server, big: Path, tmp_path: Path) -> None:
    url, target = f"{cloud.url}/big", tmp_path / "got"
    done(store(cloud, "push", url, big))
    part = target / manifest.DOWNLOAD / "train.bin"
    cloud.wire.rate = 20e6
    process = store(cloud, "pull", url, target)
    wait_for(lambda: part.exists() and part.stat().st_size >= 2 * download.PIECE)
    process.kill()
    process.communicate()
    had = part.stat().st_size
    assert had < BIG
    assert not (target / manifest.NAME).exists()
    with pytest.raises(token_set.TokenError, match="an unfinished download; the same command again finishes it"):
        token_set.open(target)
    cloud.wire.reset()
    done(store(cloud, "pull", url, target))
    assert same(big, target)
    assert cloud.wire.received < BIG - had + 2_000_000


@pytest.mark.faults
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


@pytest.mark.faults
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
    wait_for(lambda: len(there.files()) >= 2)  # one that is whole, beside what says that more is to come
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
    download.pull(there, tmp_path / "got")
    assert same(folders[1], tmp_path / "got")
    transfer.push(folders[0], there)
    download.pull(there, tmp_path / "got")  # over the other set
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
    assert f"{url}: train.bin: torn or not there" in done(store(any_server, "pull", url, target), 1)
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
        said = done(store(s3, "pull", f"{s3.url}/evil/set", tmp_path / "got"), 1)
        assert "is not a plain file name" in said
    assert not (tmp_path / "x").exists()


@pytest.mark.faults
def test_a_wire_that_is_cut_is_said_and_gone_on_after(s3: Server, big: Path, tmp_path: Path) -> None:
    url, target = f"{s3.url}/cut", tmp_path / "got"
    done(store(s3, "push", url, big))
    s3.wire.rate = 20e6
    process = store(s3, "pull", url, target)
    part = target / manifest.DOWNLOAD / "train.bin"
    wait_for(lambda: part.exists() and part.stat().st_size >= download.PIECE)
    s3.wire.cut()
    assert "no answer" in done(process, 1)
    s3.wire.reset()
    done(store(s3, "pull", url, target))
    assert same(big, target)
    assert s3.wire.received < BIG - download.PIECE + 2_000_000


def test_a_full_disk_is_said_before_anything_comes(s3: Server, big: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("mounting needs root")
    done(store(s3, "push", f"{s3.url}/big", big))
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        said = done(store(s3, "pull", f"{s3.url}/big", disk / "got"), 1)
        assert "the disk is full: 0.10 GB needed, 0.00 GB left" in said
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    ("url", "said", "code"),
    [
        ("shelf/data", "not an address; allowed: s3://, abfs:// or file://", 2),
        ("ftp://shelf/data", "not an address", 2),
        ("s3://", "not an address", 2),
        ("s3://nobody/data", "there is no bucket or container nobody", 2),
        ("s3://shelf/none", "there is no such set", 2),
    ],
)
def test_an_address_that_leads_nowhere(s3: Server, tmp_path: Path, url: str, said: str, code: int) -> None:
    assert said in done(store(s3, "pull", url, tmp_path / "got"), code)
    assert not (tmp_path / "got" / manifest.NAME).exists()


def test_without_credentials(s3: Server, tmp_path: Path) -> None:
    without = {name: value for name, value in s3.environment.items() if "KEY" not in name}
    nobody = Server(s3.url, {**without, "HOME": str(tmp_path)}, s3.wire)
    said = done(store(nobody, "pull", f"{s3.url}/x", tmp_path / "got"), 1)
    assert "no credentials: this machine has no instance profile or managed identity" in said


def test_without_a_managed_identity(tmp_path: Path) -> None:
    nobody = Server("", {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, bucket_servers.Wire(0))
    url = "abfs://shelf@nobody.dfs.core.windows.net/x"
    assert "no credentials: this machine has no" in done(store(nobody, "pull", url, tmp_path / "got"), 1)


def test_a_folder_that_is_no_set(s3: Server, tmp_path: Path) -> None:
    assert "manifest.json: No such file" in done(store(s3, "push", f"{s3.url}/x", tmp_path), 2)
    (tmp_path / manifest.NAME).write_text(json.dumps({"files": {}}))
    assert "torn or altered" in done(store(s3, "push", f"{s3.url}/x", tmp_path), 2)
