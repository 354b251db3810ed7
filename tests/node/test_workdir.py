"""A working directory on a node: kept by its content, copied afresh for a job, and what the program changed in it."""

from __future__ import annotations

import io
import os
import socket
import time
from pathlib import Path

import pytest

from node.workdir import assemble as assembling
from node.workdir import changes, manifest
from node.workdir import store as stores
from node.workdir.assemble import WorkdirError, assemble, record_of
from node.workdir.manifest import FILE, LINK, PROGRAM, Entry
from node.workdir.store import Damaged, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, *links: Entry, **files: str) -> str:
    """Store files of these contents; a name that ends in `_x` may be executed. Returns the state's hash."""
    entries = list(links)
    for name, text in files.items():
        data = text.encode()
        kind = PROGRAM if name.endswith("_x") else FILE
        entries.append(Entry(name.replace("__", "/"), kind, len(data), manifest.digest(data)))
        store.take(entries[-1].content, len(data), io.BytesIO(data))
    store.keep(manifest.encode(entries))
    return manifest.digest(manifest.encode(entries))


def listed(work: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The names that `workdir-changes` prints."""
    assert changes.main([str(work)]) == 0
    records = capsys.readouterr().out.split("\0")[:-1]
    assert all(record.startswith("f ") for record in records)
    return [record.split(" ", 3)[3] for record in records]


def test_each_copy_is_the_programs_own(store: Store, tmp_path: Path) -> None:
    snapshot = put(store, Entry("link", LINK, 0, "sub/a"), sub__a="one", run_x="#!/bin/sh\n", again="one")
    for run in ("run1", "run2"):
        (tmp_path / run).mkdir()
        assemble(snapshot, tmp_path / run / "work", store.folder)
    first = tmp_path / "run1/work"
    assert os.access(first / "run_x", os.X_OK) and not os.access(first / "again", os.X_OK)
    assert str((first / "link").readlink()) == "sub/a"
    with (first / "sub/a").open("r+") as file:
        file.write("X")
    assert (tmp_path / "run2/work/sub/a").read_text() == "one" and (first / "again").read_text() == "one"
    (tmp_path / "run3").mkdir()
    assemble(snapshot, tmp_path / "run3/work", store.folder)
    assert (tmp_path / "run3/work/sub/a").read_text() == "one", "the store is out of the program's reach"


def test_a_job_that_starts_again_finds_its_work_as_it_was_left(store: Store, tmp_path: Path) -> None:
    snapshot, work = put(store, a="one"), tmp_path / "work"
    assemble(snapshot, work, store.folder)
    (work / "a").write_text("two")
    (work / "ckpt").write_text("state")
    assemble(snapshot, work, store.folder)
    assert (work / "a").read_text() == "two" and (work / "ckpt").exists()


def test_no_files_make_an_empty_directory(tmp_path: Path) -> None:
    assemble("", tmp_path / "work", tmp_path / "store")
    assert list((tmp_path / "work").iterdir()) == [] and not (tmp_path / "store").exists()


def test_damaged_content_is_noticed_and_leaves_the_store(store: Store, tmp_path: Path) -> None:
    snapshot = put(store, a="one", b="two")
    store.blob(manifest.digest(b"one")).write_text("0ne")
    with pytest.raises(WorkdirError, match="the stored copy of a is damaged: launch it again"):
        assemble(snapshot, tmp_path / "work", store.folder)
    assert not (tmp_path / "work").exists() and not list(tmp_path.glob(".work*")) and not record_of(tmp_path).exists()
    assert store.missing(store.entries(snapshot)) == {manifest.digest(b"one"): 3}, "so it is sent again"


def test_what_is_gone_is_one_line(store: Store, tmp_path: Path) -> None:
    snapshot = put(store, a="one")
    store.blob(manifest.digest(b"one")).unlink()
    for wanted in (snapshot, "0" * 64):
        with pytest.raises(WorkdirError, match=r"is not complete in .* any more .*launch it again, which sends it$"):
            assemble(wanted, tmp_path / "work", store.folder)


def test_a_damaged_list_is_none(store: Store) -> None:
    snapshot = put(store, a="one")
    store.manifest(snapshot).write_text("[]")
    with pytest.raises(Damaged):
        store.entries(snapshot)
    with pytest.raises(FileNotFoundError):
        store.entries(snapshot)


def test_two_nodes_that_share_a_folder_may_do_it_at_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes to its end while the first one still copies."""
    snapshot, work = put(store, a="one"), tmp_path / "work"
    plain = assembling._copy_all

    def slow(*arguments: object) -> None:
        monkeypatch.setattr(assembling, "_copy_all", plain)
        monkeypatch.setattr(socket, "gethostname", lambda: "node2")
        assemble(snapshot, work, store.folder)
        (work / "made").write_text("by the second one's program")
        plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(assembling, "_copy_all", slow)
    assemble(snapshot, work, store.folder)
    assert (work / "made").exists() and not list(tmp_path.glob(".work*"))


def test_what_is_new_or_changed_is_listed(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = Entry("link", LINK, 0, "kept")
    snapshot = put(store, link, kept="1", changed="1", longer="1", touched="1", removed="1", sub__same="1")
    work = tmp_path / "work"
    assemble(snapshot, work, store.folder)
    assert listed(work, capsys) == []
    (work / "changed").write_text("2")
    (work / "longer").write_text("12")
    (work / "touched").touch()
    (work / "removed").unlink()
    (work / "sub/new folder").mkdir()
    (work / "sub/new folder/n").touch()
    (work / "__pycache__").mkdir()
    (work / "__pycache__/x.pyc").touch()
    (work / "latest").symlink_to("sub")
    os.mkfifo(work / "pipe")
    assert changes.main([str(work)]) == 0
    assert capsys.readouterr().err == f"{changes.LEFT_OUT}: 'latest', 'pipe'\n"
    assert listed(work, capsys) == ["work/changed", "work/longer", "work/sub/new folder/n"]


def test_without_its_record_everything_counts_as_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a").touch()
    assert listed(tmp_path / "work", capsys) == ["work/a"]


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_old_states_go_with_the_content_that_only_they_have(store: Store) -> None:
    old, new = put(store, a="shared", b="old"), put(store, a="shared", b="new")
    for blob in store.folder.glob("blobs/*/*"):
        age(blob, stores.OLD)
    age(store.manifest(old), stores.OLD + 60)
    store.forget_old()
    assert store.missing(store.entries(new)) == {} and not store.manifest(old).exists()
    assert not store.blob(manifest.digest(b"old")).exists()


def test_a_state_that_is_used_stays(store: Store) -> None:
    state = put(store, a="one")
    age(store.manifest(state), stores.OLD + 60)
    age(store.blob(manifest.digest(b"one")), stores.OLD + 60)
    store.missing(store.entries(state))
    store.forget_old()
    assert store.missing(store.entries(state)) == {}


def test_above_its_size_the_oldest_go_but_not_those_of_today(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [put(store, a=f"state {number}") for number in range(4)]
    for days, state in enumerate(states):
        age(store.manifest(state), days * 86400 + 60)
    monkeypatch.setattr(stores, "MOST", 15)  # each has 7 bytes
    store.forget_old()
    assert [store.manifest(state).exists() for state in states] == [True, True, False, False]
    monkeypatch.setattr(stores, "MOST", 0)
    store.forget_old()
    assert [store.manifest(state).exists() for state in states] == [True, False, False, False]


def test_content_that_arrives_now_is_not_taken_for_old(store: Store) -> None:
    """Its manifest comes last; another launch may clear up meanwhile."""
    store.take(manifest.digest(b"one"), 3, io.BytesIO(b"one"))
    store.forget_old()
    assert store.blob(manifest.digest(b"one")).exists()


@pytest.mark.parametrize(("data", "error"), [(b"on", EOFError), (b"0ne", Damaged), (b"", EOFError)])
def test_what_is_cut_or_changed_is_not_kept(data: bytes, error: type[Exception], store: Store) -> None:
    with pytest.raises(error):
        store.take(manifest.digest(b"one"), 3, io.BytesIO(data))
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


def test_a_hundred_megabytes_are_there_at_once(store: Store, tmp_path: Path) -> None:
    content = {f"f{number}": os.urandom(2_000_000) for number in range(50)}
    entries = [Entry(name, FILE, len(data), manifest.digest(data)) for name, data in content.items()]
    for one in entries:
        store.take(one.content, one.size, io.BytesIO(content[one.path]))
    store.keep(manifest.encode(entries))
    began = time.monotonic()
    assemble(manifest.digest(manifest.encode(entries)), tmp_path / "work", store.folder)
    assert time.monotonic() - began < 2
    assert all((tmp_path / "work" / name).read_bytes() == data for name, data in content.items())
