"""A working directory on its way to nodes that are real SSH servers: only what they lack, whole, or a clear line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import sshd
from invoke.exceptions import Exit
from kube_cluster import served
from polling import until

from fabfile.backends.kubernetes import view as kube_view
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.head_pod import HeadPods
from fabfile.remote.fleet import Fleet
from fabfile.workdir import send, snapshot
from infra.inventory import SshCluster
from node.workdir.assemble import assemble
from node.workdir.store import Store


@pytest.fixture
def work(home: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "data/big").write_bytes(os.urandom(3_000_000))
    (folder / "data/same").write_bytes((folder / "data/big").read_bytes())
    (folder / "link").symlink_to("data/big")
    return folder


@pytest.fixture
def cluster(yard: sshd.Yard, tmp_path: Path) -> SshCluster:
    """Two nodes, each with a home directory of its own."""
    nodes = []
    for number in (1, 2):
        (tmp_path / f"home{number}").mkdir()
        environment = {"HOME": str(tmp_path / f"home{number}")}
        server = yard.start(f"127.0.0.{number + 1}", sshd.free_port(), environment=environment)
        nodes.append(server.node(f"node{number}"))
    return yard.cluster(*nodes)


def sent(cluster: SshCluster, folder: Path, store: str = "") -> str:
    """Scan and send; returns the hash."""
    found = snapshot.scan(folder)
    with Fleet(cluster) as fleet:
        send.send(fleet, cluster.nodes, found, store)
    return found.hash


def store_of(tmp_path: Path, number: int) -> Store:
    return Store(tmp_path / f"home{number}" / ".cache/trainyard/work")


def same(left: Path, right: Path) -> bool:
    names = sorted(str(path.relative_to(left)) for path in left.rglob("*"))
    assert names == sorted(str(path.relative_to(right)) for path in right.rglob("*"))
    return all((left / n).read_bytes() == (right / n).read_bytes() for n in names if not (left / n).is_dir())


def test_nodes_get_what_they_lack_and_nothing_twice(
    cluster: SshCluster, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot_hash = sent(cluster, work)
    first = capsys.readouterr().out.splitlines()
    assert first == [
        "working directory: 4 files, 6 MB",
        "working directory: 2 files (3 MB) to send to node1, node2",
    ], "the same content goes once"
    for number in (1, 2):
        into = tmp_path / f"run{number}" / "work"
        assemble(snapshot_hash, into, store_of(tmp_path, number).folder)
        assert same(work, into) and (into / "link").is_symlink()
    sent(cluster, work)
    assert capsys.readouterr().out.splitlines() == ["working directory: 4 files, 6 MB"]

    (work / "train.py").write_text("print('changed')\n")
    (work / "link").unlink()
    shutil.rmtree(store_of(tmp_path, 2).folder)
    sent(cluster, work)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "working directory: 1 file (17 bytes) to send to node1",
        "working directory: 2 files (3 MB) to send to node2",
    ]
    (work / "train.py").rename(work / "main.py")
    sent(cluster, work)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "working directory: only the list of its files to send to node1, node2"
    ]


def test_a_shared_store_is_where_it_is_said(cluster: SshCluster, work: Path, tmp_path: Path) -> None:
    snapshot_hash = sent(cluster, work, str(tmp_path / "fsx/.trainyard/work"))
    assemble(snapshot_hash, tmp_path / "work2", tmp_path / "fsx/.trainyard/work")
    assert same(work, tmp_path / "work2")


def test_it_goes_into_a_pod_as_well(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kube").mkdir()
    with served(tmp_path / "kube") as kube:
        view = kube_view.of(kube.cluster)
        api, store = Api(kube.cluster), send.store_of(view)
        found = snapshot.scan(work)
        for lines in (2, 1):  # the second time nothing is sent
            with HeadPods(api, kube.cluster, view) as pods:
                send.send(pods, view.nodes, found, store)
            assert len(capsys.readouterr().out.splitlines()) == lines
        api.close()
    assemble(found.hash, tmp_path / "pods work", Path(store))
    assert same(work, tmp_path / "pods work")


def test_an_empty_directory_needs_no_node(yard: sshd.Yard, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    server = yard.start("127.0.0.2", sshd.free_port())
    cluster = yard.cluster(server.node("node1"))
    server.stop()
    assert sent(cluster, tmp_path / "none") == ""


def test_content_that_was_lost_or_cut_there_is_sent_again(
    cluster: SshCluster, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot_hash = sent(cluster, work)
    store = store_of(tmp_path, 1)
    blobs = sorted(store.folder.glob("blobs/*/*"), key=lambda path: path.stat().st_size)
    blobs[0].unlink()
    blobs[1].write_bytes(b"cut")
    capsys.readouterr()
    sent(cluster, work)
    assert capsys.readouterr().out.splitlines()[1:] == ["working directory: 2 files (3 MB) to send to node1"]
    assemble(snapshot_hash, tmp_path / "again", store.folder)


def changed_meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change something after the scan, just before the content is sent."""
    plain = send._send_file

    def late(*arguments: object) -> None:
        change()
        plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(send, "_send_file", late)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"x" * 3_000_000, "the working directory was not taken: data/(big|same) has changed while it was sent"),
        (b"short", "changed while it was sent"),
        (None, "cannot be read any more: No such file or directory"),
    ],
    ids=["other content", "shorter", "removed"],
)
def test_a_file_that_changes_while_it_is_sent_is_not_taken(
    text: bytes | None, line: str, cluster: SshCluster, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        for name in ("big", "same"):
            (work / "data" / name).unlink(missing_ok=True) if text is None else (work / "data" / name).write_bytes(text)

    changed_meanwhile(monkeypatch, change)
    with pytest.raises(Exit, match=line) as caught:
        sent(cluster, work)
    assert caught.value.code == 1
    assert not list(store_of(tmp_path, 1).folder.glob("manifests/*"))
    until(lambda: not list(store_of(tmp_path, 1).folder.rglob(".new-*")))


def test_a_node_that_cannot_take_it_is_named(cluster: SshCluster, work: Path, tmp_path: Path) -> None:
    (tmp_path / "home2/.cache/trainyard").mkdir(parents=True)
    (tmp_path / "home2/.cache/trainyard/work").write_text("in the way")
    with pytest.raises(Exit, match=r"^node2: .*/work.*: (File exists|Not a directory)$"):
        sent(cluster, work)


def test_a_full_disk_is_one_line_before_anything_is_sent(
    cluster: SshCluster, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "_SPARE", 1 << 60)
    room = r"node1: no room for the working directory: 3 MB to send, and its disk has .* free"
    with pytest.raises(Exit, match=room):
        sent(cluster, work)


def test_a_disk_that_fills_up_meanwhile_is_one_line(
    yard: sshd.Yard, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real limit on the size of a file of the node's processes stands for the full disk."""
    monkeypatch.setattr(send, "_SPARE", 0)
    limit = "ulimit -f 1000; trap '' XFSZ; eval \"$SSH_ORIGINAL_COMMAND\""
    script = tmp_path / "limited"
    script.write_text(f"#!/bin/bash\n{limit}\n")
    script.chmod(0o755)
    server = yard.start(
        "127.0.0.2", sshd.free_port(), extra=f"ForceCommand {script}", environment={"HOME": str(tmp_path)}
    )
    with pytest.raises(Exit, match=r"^node1: the working directory was not taken: .*File too large$"):
        sent(yard.cluster(server.node("node1")), work)
    assert not list((tmp_path / ".cache").rglob(".new-*"))


def test_a_node_that_is_lost_is_named(cluster: SshCluster, work: Path, yard: sshd.Yard) -> None:
    found = snapshot.scan(work)
    yard.servers[1].stop()
    until(yard.servers[1].refuses)
    with Fleet(cluster) as fleet, pytest.raises(Exit, match=r"node2 .*: Connection refused"):
        send.send(fleet, cluster.nodes, found)
