"""`fab data` of a token set from somebody else: nothing outside of its folder is sent or written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke.exceptions import Exit

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")

import bucket_servers
from bucket_servers import Server
from gloo_ranks import tiny_tokens

from fabfile.token_sets import upload
from training import manifest
from training.store import bucket, transfer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with bucket_servers.s3(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def there(server: Server, monkeypatch: pytest.MonkeyPatch) -> bucket.BucketFolder:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return bucket.open_folder(f"{server.url}/sets/tiny")


@pytest.mark.parametrize("spoil", ["nothing", "no val", "no manifest", "not JSON"])
def test_a_folder_that_is_no_set_is_refused_before_a_connection(tmp_path: Path, spoil: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    if spoil != "nothing":
        tiny_tokens(mine)
    if spoil == "no val":
        (mine / "val.bin").unlink()
    if spoil == "no manifest":
        (mine / manifest.NAME).unlink()
        (mine / "val.bin").unlink()
    if spoil == "not JSON":
        (mine / manifest.NAME).write_text("{")
    with pytest.raises(Exit, match=r"not a prepared token set|not the manifest of a token set") as end:
        upload.prepared(mine)
    assert end.value.code == 2


def named(folder: Path, name: object, key: str = "file") -> None:
    """A manifest whose checksum is right, and that names something else."""
    content = manifest.parse(folder / manifest.NAME)
    (content["splits"]["train"] if key == "file" else content["encoding"])[key] = name
    content["encoding"]["sha256"] = "0" * 64
    (folder / manifest.NAME).write_text(manifest.render(content))


OUTSIDE = [
    "../secret",
    "/etc/passwd",
    "..",
    ".",
    "",
    ".hidden",
    "a/b",
    "a\\b",
    "a\nb",
    "a\x1b[2J",
    "\u202ea",
    "a\x00",
    7,
]


@pytest.mark.parametrize("key", ["file", "ranks"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_manifest_that_names_a_file_elsewhere_is_refused_here_and_on_a_node(
    tmp_path: Path, name: object, key: str
) -> None:
    mine = tiny_tokens(tmp_path / "mine")
    (tmp_path / "secret").write_text("mine alone")
    named(mine, name, key)
    if name != "" or key == "file":  # no vocabulary at all is nothing to send
        with pytest.raises(Exit, match=r"names the file|not the manifest of a token set") as end:
            upload.prepared(mine)
        assert end.value.code == 2 and "\n" not in str(end.value) and "\x1b" not in str(end.value)
    with pytest.raises(bucket.StoreError, match="not a plain file name"):
        transfer.read_source(mine)
    with pytest.raises(manifest.TokenError, match="not a plain file name"):
        manifest.check(mine, manifest.parse(mine / manifest.NAME))


def test_a_hostile_set_in_the_bucket_writes_nothing_elsewhere(there: bucket.BucketFolder, tmp_path: Path) -> None:
    mine = tiny_tokens(tmp_path / "mine")
    named(mine, "../../.ssh/authorized_keys")
    there.write(manifest.NAME, (mine / manifest.NAME).read_bytes())
    with pytest.raises(bucket.StoreError, match="not a plain file name"):
        transfer.pull(there, tmp_path / "got")
    assert transfer.complete_manifest(there) is None and not (tmp_path / "got").exists()


@pytest.mark.parametrize("which", ["train.bin", "manifest.json"])
def test_a_link_out_of_the_folder_is_not_sent(tmp_path: Path, which: str) -> None:
    mine = tiny_tokens(tmp_path / "mine")
    (mine / which).rename(tmp_path / "elsewhere")
    (mine / which).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exit, match=f"{which}: is a link that leads out of the folder") as end:
        upload.prepared(mine)
    assert end.value.code == 2
    if which == "train.bin":
        with pytest.raises(bucket.StoreError, match="is a link that leads out of the folder"):
            transfer.read_source(mine)
    (mine / which).unlink()
    (tmp_path / "elsewhere").rename(mine / "real")
    (mine / which).symlink_to("real")  # one that stays inside is as good as a file
    assert [file.name for file in upload.prepared(mine)][-1] == "manifest.json"


def test_what_comes_from_a_bucket_is_not_written_through_a_link(there: bucket.BucketFolder, tmp_path: Path) -> None:
    transfer.push(tiny_tokens(tmp_path / "mine"), there)
    work = tmp_path / "got" / manifest.DOWNLOAD
    work.mkdir(parents=True)
    (tmp_path / "outside").write_text("")
    (work / manifest.NAME).write_bytes(there.read(manifest.NAME) or b"")
    (work / "train.bin").symlink_to(tmp_path / "outside")
    transfer.pull(there, tmp_path / "got")
    assert (tmp_path / "outside").read_text() == "" and not (tmp_path / "got" / "train.bin").is_symlink()
