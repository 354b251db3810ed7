"""`fab fetch` from a head that may be hostile: what is taken, refused, and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sshd
from invoke.context import Context
from invoke.exceptions import Exit
from tar_archives import HOSTILE, archive, files, member, tree

from fabfile import download
from fabfile.verbs.results import fetch
from infra.inventory import to_json


class HostileHead:
    """A real sshd that answers the questions of `fab fetch` with what a test wants."""

    def __init__(self, folder: Path, yard: sshd.Yard) -> None:
        self.folder = folder
        script = folder / "answer"
        script.write_text(f"""#!/bin/sh
case "$SSH_ORIGINAL_COMMAND" in
    *"find ."*) cat {folder}/list ;;
    *"tar --format"*) cat {folder}/tar ;;
    *"launch jobs"*) cat {folder}/jobs ;;
    *install*) head -n 1 >/dev/null; echo '{{"have": true}}'; echo '{{"folder": "/code", "busy": "", "problem": ""}}' ;;
esac
""")
        script.chmod(0o755)
        job = {"id": "demo-1", "state": "FAILED", "nodes": ["node1"], "created": 5.0, "started": 5.0}
        (folder / "jobs").write_text(json.dumps([job]))
        server = yard.start("127.0.0.2", sshd.free_port("127.0.0.2"), extra=f"ForceCommand {script}")
        self.inventory = folder / "nodes.json"
        self.inventory.write_text(to_json(yard.cluster(server.node("node1"))))

    def has(self, listed: dict[str, int], tar: bytes, extra: str = "") -> None:
        records = [f"f {size} 1000.5 {name}\0" for name, size in listed.items()]
        (self.folder / "list").write_bytes(("".join(records) + extra).encode(errors="surrogateescape"))
        (self.folder / "tar").write_bytes(tar)

    def fetch(self, target: Path) -> None:
        fetch.body(Context(), "demo-1", to=str(target), inventory=str(self.inventory))


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileHead]:
    sshd.require()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "yard").mkdir()
    yard = sshd.Yard(tmp_path / "yard", [])
    sshd.keygen(yard.identity)
    yield HostileHead(tmp_path / "yard", yard)
    yard.stop()


STATE = json.dumps({"id": "demo-1", "started": 5.0}).encode()


def test_a_job_is_fetched_and_fetched_again(
    head: HostileHead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "got"
    first = {"state.json": STATE, "log": b"one\n", "checkpoints/step-000001/model": b"m" * 2000}
    head.has({name: len(content) for name, content in first.items()}, files(first))
    head.fetch(target)
    assert tree(target) == first
    (target / "notes").write_text("mine")
    second = {**first, "log": b"one\ntwo\n", "checkpoints/step-000002/model": b"n"}
    head.has({name: len(content) for name, content in second.items()}, files(second))
    head.fetch(target)
    assert tree(target) == {**second, "notes": b"mine"}
    assert "2 of 4 files new or changed" in capsys.readouterr().out


def test_a_large_file_that_is_here_is_not_asked_for_again(head: HostileHead, tmp_path: Path) -> None:
    target = tmp_path / "got"
    large = b"m" * (2 << 20)
    head.has(
        {"state.json": len(STATE), "model": len(large)},
        archive((member("./state.json"), STATE), (member("./model", mtime=1000), large)),
    )
    head.fetch(target)
    head.has({"state.json": len(STATE), "model": len(large)}, files({"state.json": STATE}))
    head.fetch(target)
    assert tree(target) == {"state.json": STATE, "model": large}


def test_a_file_that_went_away_meanwhile_is_named(
    head: HostileHead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head.has({"state.json": len(STATE), "gone": 5}, files({"state.json": STATE}))
    head.fetch(tmp_path / "got")
    assert "gone: was removed there before it could be read" in capsys.readouterr().out


LISTS: dict[str, tuple[dict[str, int], str, str]] = {
    "above": ({"../../.bashrc": 1}, "", "'../../.bashrc' has an empty part, '.' or '..'"),
    "absolute": ({"/etc/profile": 1}, "", "'/etc/profile' is an absolute path"),
    "escape sequence": ({"\x1b[2Jx": 1}, "", "'\\x1b[2Jx' has a character that cannot be seen"),
    "link": ({}, "l 4 1.0 checkpoints\0", "'checkpoints' is neither a file nor a folder"),
    "file and folder": ({"a": 1, "a/b": 1}, "", "'a' is listed as a file and as a folder"),
    "twice": ({"a": 1}, "f 1 1.0 a\0", "'a' is listed twice"),
    "no size": ({}, "f -1 1.0 a\0", "'a' is listed with the size '-1'"),
    "more than the disk": ({"a": 1 << 60}, "", " free"),
    "many": ({str(number): 0 for number in range(100_001)}, "", "it has 100001 files"),
}


@pytest.mark.parametrize("what", LISTS)
def test_a_hostile_list_is_refused_before_a_file_is_asked_for(what: str, head: HostileHead, tmp_path: Path) -> None:
    listed, extra, why = LISTS[what]
    head.has(listed, b"never read", extra)
    with pytest.raises(Exit) as end:
        head.fetch(tmp_path / "to" / "got")
    assert end.value.code == 1 and why in str(end.value) and "\n" not in str(end.value)
    assert not (tmp_path / "to" / "got").exists() and not list(tmp_path.glob("to/*"))


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_is_kept_of_a_hostile_archive(what: str, head: HostileHead, tmp_path: Path) -> None:
    data, why = HOSTILE[what]
    head.has({"a": 1}, data)
    with pytest.raises(Exit) as end:
        head.fetch(tmp_path / "to" / "got")
    assert (
        end.value.code == 1 and why in str(end.value) and str(end.value).startswith("node1: demo-1 was not fetched: ")
    )
    assert not list(tmp_path.glob("to/*"))


def test_a_file_that_grows_without_end_is_stopped(
    head: HostileHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_GROWTH", 1000)
    head.has({"log": 1000}, archive((member("./log", size=2001), b"x" * 2001)))
    with pytest.raises(Exit, match="'log' has 2001 bytes, more than was announced"):
        head.fetch(tmp_path / "got")


def another_run(target: Path) -> None:
    (target / "state.json").write_text(json.dumps({"id": "demo-1", "started": 4.0}))


def a_link(target: Path) -> None:
    (target / "state.json").write_bytes(STATE)
    (target / "a").symlink_to(target.parent / "outside")


@pytest.mark.parametrize(
    ("make", "code", "why"),
    [
        (another_run, 2, "has files that are not of demo-1; name another folder with --to"),
        (lambda target: (target / "x").touch(), 2, "has files that are not of demo-1"),
        (a_link, 1, "got/a is in the way: it is not a plain file"),
    ],
)
def test_a_folder_with_something_else_is_left_alone(
    make: Callable[[Path], None], code: int, why: str, head: HostileHead, tmp_path: Path
) -> None:
    target = tmp_path / "got"
    target.mkdir()
    (tmp_path / "outside").write_text("mine")
    make(target)
    before = sorted(path.name for path in target.iterdir())
    head.has({"a": 1}, files({"a": b"x"}))
    with pytest.raises(Exit) as end:
        head.fetch(target)
    assert end.value.code == code and why in str(end.value)
    assert sorted(path.name for path in target.iterdir()) == before and (tmp_path / "outside").read_text() == "mine"


def test_to_a_file_is_one_line_before_a_connection(head: HostileHead, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for target in (file, file / "below"):
        with pytest.raises(Exit, match=r"--to .*/file is a file; name a folder") as end:
            head.fetch(target)
        assert end.value.code == 2
