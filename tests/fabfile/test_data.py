"""`fab data` on real SSH servers and a real S3 server: made or taken, put into the bucket, brought to every node."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sshd
from invoke.context import Context
from invoke.exceptions import Exit

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")

import bucket_servers
from bucket_servers import Server
from gloo_ranks import tiny_tokens

from fabfile import resume
from fabfile.backends.ssh.backend import SshBackend
from fabfile.job_file import resolve
from fabfile.remote import deploy
from fabfile.token_sets import token_set, upload
from fabfile.verbs.data import data
from infra.inventory import SshCluster, to_json
from training import manifest
from training.data import token_set as tokens
from training.store import bucket, transfer

# Each test has two SSH servers and an S3 server, and the nodes' Pythons load the buckets' libraries.
pytestmark = pytest.mark.acceptance


@dataclass
class Nodes:
    """Two nodes, each with a home of its own, as `--inventory` says."""

    file: Path
    homes: list[Path]
    cluster: SshCluster

    def fab(self, *overrides: str, **options: object) -> None:
        data.body(Context(), "smoke", set_=overrides, inventory=str(self.file), **options)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with bucket_servers.s3(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def nodes(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    sshd.require()
    monkeypatch.setenv("HOME", str(tmp_path / "operator"))
    (tmp_path / "operator" / ".ssh").mkdir(parents=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    # A node's environment, and what a machine for tests may not have: sudo, and a systemd that knows of no job.
    lines = {"python": f'exec {sys.executable} "$@"', "sudo": 'exec "$@"', "systemctl": "exit 0"}
    for name, line in lines.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    for module in (token_set, deploy):
        monkeypatch.setattr(module, "VENV", str(programs))
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    homes = [tmp_path / "home1", tmp_path / "home2"]
    port = sshd.free_port()
    for number, home in enumerate(homes):
        home.mkdir()
        environment = {**server.environment, "HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin"}
        yard.start(f"127.0.0.{number + 2}", port, environment=environment)
    machines = [each.node(f"node{number + 1}") for number, each in enumerate(yard.servers)]
    cluster = replace(yard.cluster(*machines), data_url=server.url)
    file = tmp_path / "nodes.json"
    file.write_text(to_json(cluster))
    yield Nodes(file, homes, cluster)
    yard.stop()


@pytest.fixture
def there(server: Server, monkeypatch: pytest.MonkeyPatch) -> bucket.BucketFolder:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return bucket.open_folder(f"{server.url}/sets/tiny")


def test_it_is_made_once_and_brought_to_every_node(
    nodes: Nodes, there: bucket.BucketFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(400):
        (texts / f"{number}.txt").write_text(f"the quick brown fox jumps over {number} lazy dogs. " * 9)
    overrides = ["data.path=sets/tiny", f"data.source={texts}", "data.train_vocab=300"]
    nodes.fab(*overrides)
    output = capsys.readouterr().out
    assert "sets/tiny is complete on 2 nodes, checksums verified; kept in s3://shelf/sets/tiny" in output
    assert "next: fab train smoke" in output
    for home in nodes.homes:
        assert tokens.open(home / "sets/tiny", verify=True).manifest["vocab_size"] <= 301
    assert transfer.complete_manifest(there)
    made = (nodes.homes[0] / "sets/tiny" / manifest.NAME).stat().st_mtime_ns
    nodes.fab(*overrides, raw=True)
    output = capsys.readouterr().out
    assert "s3://shelf/sets/tiny/raw: complete; 0.16 MB of text in 400 lines" in output, output
    kept = gzip.decompress(there.at("raw").read("text-00000.jsonl.gz") or b"").decode().splitlines()
    assert sorted(json.loads(line)["text"] for line in kept) == sorted(path.read_text() for path in texts.iterdir())
    shutil.rmtree(nodes.homes[1] / "sets")  # a node that was replaced
    shutil.rmtree(texts)  # not needed again
    nodes.fab(*overrides, raw=True)
    assert "is there already" in capsys.readouterr().out
    tokens.open(nodes.homes[1] / "sets/tiny", verify=True)
    assert (nodes.homes[0] / "sets/tiny" / manifest.NAME).stat().st_mtime_ns == made


@pytest.mark.parametrize("bare", [False, True])
def test_a_prepared_set_is_taken_from_here(
    nodes: Nodes, there: bucket.BucketFolder, tmp_path: Path, bare: bool
) -> None:
    mine = tiny_tokens(tmp_path / "mine")
    if bare:
        (mine / manifest.NAME).unlink()
    nodes.fab("data.path=sets/tiny", from_=str(mine))
    for home in nodes.homes:
        read = tokens.open(home / "sets/tiny", verify=True)
        assert (read.train == tokens.open(mine).train).all()
        assert sorted(path.name for path in (home / "sets/tiny").iterdir()) == ["manifest.json", "train.bin", "val.bin"]
    assert transfer.complete_manifest(there)


def test_an_upload_from_here_goes_on_where_it_was(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tiny_tokens(tmp_path / "mine")
    files = upload.prepared(mine)
    part = nodes.homes[0] / "sets/tiny/.upload" / upload._key(files)
    part.mkdir(parents=True)
    content = (mine / "train.bin").read_bytes()
    (part / "train.bin").write_bytes(content[:30_000])
    (part.parent / "another").mkdir()
    sent: list[int] = []
    monkeypatch.setattr(upload, "_CHUNK", 1000)
    original = upload._send

    def send(fleet: object, file: Path, target: str) -> None:
        before = (part / file.name).stat().st_size if (part / file.name).exists() else 0
        original(fleet, file, target)  # type: ignore[arg-type]
        sent.append((part / file.name).stat().st_size - before)

    monkeypatch.setattr(upload, "_send", send)
    nodes.fab("data.path=sets/tiny", from_=str(mine))
    assert sent[0] == len(content) - 30_000
    assert (nodes.homes[1] / "sets/tiny/train.bin").read_bytes() == content
    assert not (nodes.homes[0] / "sets/tiny/.upload").exists()


def test_a_set_that_is_altered_here_reaches_neither_bucket_nor_nodes(
    nodes: Nodes, there: bucket.BucketFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tiny_tokens(tmp_path / "mine")
    raw = bytearray((mine / "train.bin").read_bytes())
    raw[5] ^= 1
    (mine / "train.bin").write_bytes(raw)
    with pytest.raises(Exit) as end:
        nodes.fab("data.path=sets/tiny", from_=str(mine))
    assert end.value.code == 2
    assert "node1: exit code 2: error: sets/tiny/train.bin: altered" in capsys.readouterr().err
    assert not transfer.complete_manifest(there)
    assert not (nodes.homes[1] / "sets/tiny").exists()


def test_a_bucket_that_is_not_there_is_said_before_anything_is_made(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.file.write_text(to_json(replace(nodes.cluster, data_url="s3://nobody")))
    with pytest.raises(Exit) as end:
        nodes.fab("data.path=sets/tiny", "data.source=stdlib")
    assert end.value.code == 2
    assert "there is no bucket or container nobody" in capsys.readouterr().err
    assert not (nodes.homes[0] / "sets").exists()


def test_a_job_of_another_cluster_is_gone_on_with_from_the_bucket(
    nodes: Nodes,
    there: bucket.BucketFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deploy, "VENV", str(tmp_path / "bin"))
    runs = bucket.open_folder(f"{there.url.removesuffix('/sets/tiny')}/runs")
    runs.at("demo-7").write("run.json", b"{}")
    runs.at("demo-7").write("job.toml", resolve("smoke", [], 1).text.encode())
    with SshBackend(nodes.cluster) as backend:
        assert backend.mirrored(backend.mirror) == ["demo-7"]
        assert resume.begun(backend, "demo-7", "", ()).mirrored
        assert "demo-7 is not one of yard's jobs: resuming it from s3://shelf/runs/demo-7" in capsys.readouterr().out
        with pytest.raises(Exit, match="no job 'demo-8' on yard"):
            resume.begun(backend, "demo-8", "", ())
        own = nodes.homes[0] / "runs/demo-7"
        own.mkdir(parents=True)
        (own / "state.json").write_text(json.dumps({"id": "demo-7", "state": "FAILED", "created": 0, "nodes": []}))
        with pytest.raises(Exit, match=r"demo-7 has no job\.toml"):  # its own directory comes first
            resume.begun(backend, "demo-7", "", ())
        assert backend.mirrored("s3://nobody/runs") == []
    assert "warning: node1: the mirror cannot be asked" in capsys.readouterr().err


def test_a_cluster_without_a_bucket_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"schema": 1, "kind": "ssh", "nodes": [{"name": "node1", "private_ip": "10.9.9.9"}]}))
    with pytest.raises(Exit, match=r"machines has no bucket .*\n.*fab prepare smoke") as end:
        data.body(Context(), "smoke", inventory=str(file))
    assert end.value.code == 2
