"""The working directory of a program as it is scanned: which files, which hash, what is refused."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invoke.exceptions import Exit

from fabfile.workdir import hashes, ignore, snapshot
from node.workdir.manifest import FILE, LINK, PROGRAM

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]


@pytest.fixture
def work(home: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "my work"
    folder.mkdir()
    return folder


def put(folder: Path, **files: str) -> None:
    """Write files; `__` in a name is a `/`."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(folder: Path, *words: str) -> None:
    subprocess.run([*GIT, "-C", folder, *words], check=True, capture_output=True)


def names(folder: Path) -> list[str]:
    return [one.path for one in snapshot.scan(folder).entries]


def refused(folder: Path, match: str) -> None:
    with pytest.raises(Exit, match=match) as caught:
        snapshot.scan(folder)
    assert caught.value.code == 2 and "\n" not in str(caught.value.message)


def test_content_mode_and_links_make_the_hash_and_times_do_not(work: Path) -> None:
    put(work, train="x = 1\n", data__a="text")
    (work / "link").symlink_to("data/a")
    (work / "train").chmod(0o755)
    first = snapshot.scan(work)
    kinds = {one.path: (one.kind, one.size) for one in first.entries}
    assert kinds == {"data/a": (FILE, 4), "link": (LINK, 0), "train": (PROGRAM, 6)}
    assert (first.size, first.summary) == (10, "working directory: 3 files, 10 bytes")
    os.utime(work / "train", (1, 1))
    (work / "empty").mkdir()
    assert snapshot.scan(work).hash == first.hash
    changes: list[Callable[[], object]] = [
        lambda: (work / "train").chmod(0o644),
        lambda: (work / "data/a").write_text("teXt"),
        lambda: (work / "data/a").rename(work / "data/b"),
        lambda: ((work / "link").unlink(), (work / "link").symlink_to("data/b")),
    ]
    seen = {first.hash}
    for change in changes:
        change()
        seen.add(snapshot.scan(work).hash)
    assert len(seen) == 5


def test_in_a_git_work_tree_git_says_what_belongs_to_it(work: Path) -> None:
    put(work, kept="", new="", gone="", out__big="", sub__deep__x="", sub__x_log="")
    (work / ".gitignore").write_text("out/\n")
    (work / "sub/.gitignore").write_text("*_log\n")
    git(work, "init", "-q")
    git(work, "add", "kept", "gone")
    git(work, "add", "--force", "out/big")
    (work / "gone").unlink()
    assert names(work) == [".gitignore", "kept", "new", "out/big", "sub/.gitignore", "sub/deep/x"]
    assert names(work / "sub") == [".gitignore", "deep/x"], "a folder of a work tree has its rules, too"
    (work / ".trainyardignore").write_text("/new\nsub/deep/\n")
    assert names(work) == [".gitignore", ".trainyardignore", "kept", "out/big", "sub/.gitignore"]


def test_a_link_into_a_work_tree_and_a_relative_path_have_its_rules(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(work, sub__a="", sub__b_log="", kept_log="")
    (work / ".gitignore").write_text("*_log\n")
    git(work, "init", "-q")
    (tmp_path / "link").symlink_to(work / "sub")
    monkeypatch.chdir(work / "sub")
    assert names(tmp_path / "link") == names(Path()) == names(Path("../sub")) == ["a"]


def test_repositories_inside_go_along(work: Path) -> None:
    """A submodule, and a clone that git does not know: git itself lists only the folder."""
    put(work, own="", clone__a="", clone__b_log="")
    (work / "clone/.gitignore").write_text("*_log\n")
    for folder in (work, work / "clone"):
        git(folder, "init", "-q")
    assert names(work) == ["clone/.gitignore", "clone/a", "own"]
    git(work / "clone", "add", ".")
    git(work / "clone", "commit", "-qm", "x")
    git(work, "add", ".")  # now as a submodule is
    assert names(work) == ["clone/.gitignore", "clone/a", "own"]


def test_the_environment_of_a_hook_does_not_mislead_git(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(work, a="")
    git(work, "init", "-q")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    assert names(work) == ["a"]


def test_a_repository_names_no_program_that_runs_here(work: Path, tmp_path: Path) -> None:
    """A job may have written the `.git` of a folder that was fetched."""
    program = tmp_path / "monitor"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(work, "init", "--quiet")
    git(work, "config", "core.fsmonitor", str(program))
    (work / "train.py").write_text("")
    assert [entry.path for entry in snapshot.scan(work).entries] == ["train.py"]
    assert not (tmp_path / "ran").exists()


def test_a_git_that_fails_is_one_line(work: Path) -> None:
    (work / ".git").mkdir()
    refused(work, "git cannot say which files belong to it: fatal: not a git repository")


NAMES = st.sampled_from(["a", "b", "ab", "a.log", "b.py", "x"])
RULES = st.lists(
    st.sampled_from(
        ["a", "b/", "/a", "*.log", "a/b", "**/x", "a/**", "*", "#a", "", "x/", "/b/*", "a*", "[ab]", "a/*/x", "?b"]
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(
    paths=st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=8),
    rules=RULES,
    inner=st.dictionaries(st.sampled_from(["a", "b", "a/b", "x"]), RULES, max_size=2),
)
def test_the_rules_are_gits(paths: list[list[str]], rules: list[str], inner: dict[str, list[str]]) -> None:
    """Outside of a work tree as in one, and in our own file as in .gitignore."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for parts in paths:
            path = folder.joinpath(*parts)
            if not any(parent.is_file() for parent in path.parents) and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        for where, more in {"": rules, **inner}.items():
            if (folder / where).is_dir():
                (folder / where / ".gitignore").write_text("".join(f"{rule}\n" for rule in more))
        outside = ignore.chosen(folder)
        git(folder, "init", "-q")
        assert ignore.chosen(folder) == outside
        (folder / ".gitignore").rename(folder / ".trainyardignore")
        special = (".gitignore", ".trainyardignore")
        assert {n for n in ignore.chosen(folder) if n not in special} == {n for n in outside if n not in special}


def test_a_file_that_is_brought_back_goes_along(work: Path) -> None:
    put(work, a__b__x="", top="", **{"a__b.py": "", "b.py": ""})
    (work / ".gitignore").write_text("*\n!*/\n!*.py\n")
    assert names(work) == ["a/b.py", "b.py"]


def test_without_git_it_is_said(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    refused(work, "there is no git on this machine")


def test_links_that_lead_out_are_refused(work: Path, tmp_path: Path) -> None:
    put(work, a__b__c="", f="")
    put(tmp_path, secret="")
    (work / "a/up").symlink_to("..")  # inside
    (work / "dangling").symlink_to("nothing")
    assert {"a/up", "dangling"} <= set(names(work))
    for target in ("../secret", str(tmp_path / "secret"), "a/up/../secret", str(work / "f")):
        (work / "out").unlink(missing_ok=True)
        (work / "out").symlink_to(target)
        refused(work, "the link out leads to .*, outside of the working directory")


def test_what_is_no_file_is_left_out(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Git never adds a pipe or a socket; one in the place of a file that git has is said."""
    put(work, a="", pipe="")
    os.mkfifo(work / "other")
    assert names(work) == ["a", "pipe"] and capsys.readouterr().err == ""
    git(work, "init", "-q")
    git(work, "add", "pipe")
    (work / "pipe").unlink()
    os.mkfifo(work / "pipe")
    assert names(work) == ["a"]
    assert capsys.readouterr().err == "working directory: not sent, as they are no files: pipe\n"


def test_bad_folders_and_names_are_one_line(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(work / "nowhere", "there is no such folder")
    put(work, file="")
    refused(work / "file", "is no folder")
    (work / "back\\slash").touch()
    refused(work, "has a backslash: rename it, or leave it out in .trainyardignore")
    (work / ".trainyardignore").write_text("back*\n")
    assert names(work) == [".trainyardignore", "file"]
    monkeypatch.setattr(snapshot, "MOST_FILES", 1)
    refused(work, "has 2 files; at most 1 are sent")


def test_an_unchanged_file_is_not_read_again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(work, old="old", changed="abc", touched="t")
    for name in ("old", "changed", "touched"):
        os.utime(work / name, (1, 1))
    monkeypatch.setattr(hashes, "_SETTLED_NS", -1)  # the state of the inode has just changed
    before = snapshot.scan(work)
    read: list[str] = []
    plain = hashes._hash
    monkeypatch.setattr(hashes, "_hash", lambda path: (read.append(path.name), plain(path))[1])
    assert snapshot.scan(work) == before and read == []
    (work / "changed").write_text("xyz")
    os.utime(work / "changed", (1, 1))  # as long, as old as before
    os.utime(work / "touched", (2, 2))
    assert snapshot.scan(work).hash != before.hash and sorted(read) == ["changed", "touched"]


def test_a_file_that_has_just_changed_is_read_again(work: Path, home: Path) -> None:
    """It may change once more within the same tick of the file system's clock."""
    put(work, a="a")
    first = snapshot.scan(work)
    (memory,) = (home / ".trainyard/workdirs").glob("*") if (home / ".trainyard/workdirs").exists() else [None]
    assert memory is None or "a" not in memory.read_text()
    assert snapshot.scan(work) == first


def test_a_damaged_memory_is_no_memory(work: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(work, a="a")
    monkeypatch.setattr(hashes, "_SETTLED_NS", -1)
    first = snapshot.scan(work)
    (memory,) = (home / ".trainyard/workdirs").glob("*.json")
    for text in ("", "[]", '{"a": 1}', "\0", "[" * 100_000):
        memory.write_text(text)
        assert snapshot.scan(work) == first


def test_a_large_directory_is_asked_about(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(work, small="x", data__a="x" * 3000, data__b="y" * 2000)
    found = snapshot.scan(work)
    snapshot.confirm(found, yes=False)
    monkeypatch.setattr(snapshot, "LARGE", 4000)
    snapshot.confirm(found, yes=True)
    assert capsys.readouterr().out == ""
    with pytest.raises(Exit, match="add --yes") as caught:
        snapshot.confirm(found, yes=False)
    assert caught.value.code == 2
    assert "working directory: 3 files, 5 kB: data 5 kB, small 1 bytes" in capsys.readouterr().out


def test_a_directory_of_which_nothing_goes_along_says_so(work: Path) -> None:
    assert snapshot.scan(work).hash == "" and snapshot.scan(work).summary.endswith("has no files to send")
    put(work, a="")
    (work / ".trainyardignore").write_text("*\n")
    assert snapshot.scan(work).hash == "" and snapshot.scan(work).summary.endswith("all of its files are ignored")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (12_345, "12 kB"), (999_600, "1 MB"), (103e6, "103 MB"), (2.5e9, "2.5 GB")],
)
def test_sizes(size: float, text: str) -> None:
    assert snapshot.bytes_text(int(size)) == text


def test_a_hundred_megabytes_are_scanned_again_at_once(work: Path) -> None:
    for number in range(50):
        (work / f"{number}").write_bytes(os.urandom(2_000_000))
        os.utime(work / f"{number}", (1, 1))
    time.sleep(2.1)
    first = snapshot.scan(work)
    began = time.monotonic()
    assert snapshot.scan(work) == first
    assert time.monotonic() - began < 0.5
