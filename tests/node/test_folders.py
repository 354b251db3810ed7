"""node.folders and who calls it: folders that a job has nested are walked and removed, and nothing outside is."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import deep_tree
import pytest

from fabfile.remote import filenames
from node import folders, install, requirements
from node.kubernetes import records
from node.workdir import changes

ROOT = Path(__file__).resolve().parents[2]
FEW_DESCRIPTORS = 64


@pytest.fixture
def secrets(tmp_path: Path) -> Iterator[Path]:
    """A folder to which links lead; it must stay as it is."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("ours")
    yield folder
    assert (folder / "file").read_text() == "ours"


@pytest.fixture
def deep(tmp_path: Path, secrets: Path) -> Iterator[Path]:
    """A folder with the nested folders of a job."""
    folder = tmp_path / "deep"
    folder.mkdir()
    deep_tree.plant(folder, outside=secrets)
    yield folder
    subprocess.run(["rm", "-rf", "--", str(folder)], check=True)


def test_nested_folders_are_removed_with_few_descriptors(deep: Path) -> None:
    program = f"from pathlib import Path; from node import folders; folders.remove(Path({str(deep)!r}))"
    limits = (FEW_DESCRIPTORS, FEW_DESCRIPTORS)
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        check=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    )
    assert not deep.exists()


def test_a_walk_sees_each_folder_once_when_it_comes_and_when_it_goes(tmp_path: Path) -> None:
    for name in ("b/c", "b/d", "a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "b" / "link").symlink_to("..")
    errors: list[OSError] = []
    visits = [(visit.path_of(), visit.others, visit.is_over) for visit in folders.walk(tmp_path, errors)]
    assert visits == [
        *[("", [], False), ("a", [], False), ("a", [], True), ("b", ["link"], False)],
        *[("b/c", [], False), ("b/c", [], True), ("b/d", [], False), ("b/d", [], True), ("b", [], True)],
    ]
    assert errors == []


def test_a_folder_that_is_moved_below_the_walk_ends_it(tmp_path: Path, secrets: Path) -> None:
    """Its `..` then leads elsewhere, where nothing may be removed."""
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    walk = folders.walk(tmp_path / "top", [])
    while next(walk).path_of() != "a/b":
        pass
    (tmp_path / "top" / "a" / "b").rename(secrets / "b")
    with pytest.raises(OSError, match="a folder was moved meanwhile"):
        next(walk)


def test_what_cannot_be_removed_is_the_error_and_the_rest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "top"
    (top / "a").mkdir(parents=True)
    (top / "a" / "kept").touch()
    (top / "b").mkdir()
    unlink = os.unlink

    def refuse(name: str, *, dir_fd: int | None = None) -> None:
        if name == "kept":
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError):
        folders.remove(top)
    assert [path.name for path in top.iterdir()] == ["a"]


def test_of_a_link_only_the_link_goes(tmp_path: Path, secrets: Path) -> None:
    (tmp_path / "link").symlink_to(secrets)
    folders.remove(tmp_path / "link")
    folders.remove(tmp_path / "missing")
    assert not (tmp_path / "link").is_symlink()


def test_changes_of_a_working_directory_are_listed_as_far_as_they_can_be_fetched(
    deep: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (deep / "result").write_text("1")
    assert changes.LONGEST == filenames.LONGEST
    assert changes.main([str(deep)]) == 0
    shown = capsysbinary.readouterr()
    (record,) = shown.out.split(b"\0")[:-1]
    assert record.startswith(b"f 1 ") and record.endswith(b" deep/result")
    assert shown.err.decode().startswith(f"{changes.LEFT_OUT}: 'out', 'nnn") and len(shown.err) < 1000


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_an_old_environment_goes_with_what_a_job_has_nested_in_it(deep: Path) -> None:
    age(deep, 2 * requirements.OLD)
    requirements._forget_old(deep.parent, "current")
    assert not deep.exists()


def test_an_old_version_of_the_package_goes_likewise(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    age(deep, 2 * install.OLD)
    monkeypatch.setattr(install, "CODE", deep.parent)
    install.forget_old(deep.parent / "current")
    assert not deep.exists()


def test_a_refused_job_leaves_no_run_directory(deep: Path) -> None:
    (deep / "state.json").write_text('{"state": "PENDING"}')
    assert records.undo(deep) == {}
    assert not deep.exists()
