"""What a machine gets that was made anew under a job, by the very command; ssh and rsync are stand-ins, machines are
folders."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from node.job.new_machine import brought, folders

JOB = '[data]\npath = "{path}"\n'
# As sshd does, it runs the words joined, in the home directory.
SSH = """#!/bin/sh
[ -e "$AWAY" ] && { echo "ssh: connect to host node3 port 22: No route to host" >&2; exit 255; }
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
[ "$1" = node3 ] || exit 2
shift; cd "$THERE" && HOME=$THERE exec sh -c "$*"
"""
RSYNC = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do [ "$1" = -e ] && shift; shift; done
cd "$HOME" && [ "${2%%:*}" = node3 ] && mkdir -p "$THERE/${2#*:}" && cp -r "$1." "$THERE/${2#*:}"
[ -e "$BREAKS" ] && { rm "$BREAKS"; echo "rsync: connection unexpectedly closed" >&2; exit 12; }
exit 0
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head's home, with programs and data, and a new machine's beside it, empty."""
    for name, text in (("ssh", SSH), ("rsync", RSYNC)):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    head, there = tmp_path / "head", tmp_path / "there"
    for folder in ("cache/code/abc/training", "data sets/it's"):
        (head / folder).mkdir(parents=True)
        (head / folder / "file").write_text(folder)
    there.mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name, path in (("HOME", head), ("THERE", there), ("AWAY", tmp_path / "away"), ("BREAKS", tmp_path / "breaks")):
        monkeypatch.setenv(name, str(path))
    return tmp_path


def brings() -> subprocess.CompletedProcess[str]:
    paths = folders("cache/code/abc", JOB.format(path="data sets/it's/"), "")
    return subprocess.run(
        brought("node3", paths, ["echo", "the keeper, $(id -u)"]), capture_output=True, text=True, check=False
    )


def test_a_new_machine_gets_programs_and_data_before_its_keeper_starts(home: Path) -> None:
    done = brings()
    *events, keeper = done.stdout.splitlines()
    assert [json.loads(event) for event in events] == [
        {"event": "copies", "folder": "cache/code/abc"},
        {"event": "copies", "folder": "data sets/it's"},
    ]
    assert keeper == "the keeper, $(id -u)", "a word of its command is not a shell's here"
    assert (home / "there/cache/code/abc/training/file").read_text() == "cache/code/abc/training"
    assert (home / "there/data sets/it's/file").exists() and not list(home.glob("there/**/*.part"))


def test_what_is_there_is_left_as_it_is(home: Path) -> None:
    brings()
    (home / "there/data sets/it's/file").write_text("its own")
    assert brings().stdout == "the keeper, $(id -u)\n"
    assert (home / "there/data sets/it's/file").read_text() == "its own"


def test_a_copy_that_was_cut_off_is_not_taken_for_the_folder_and_goes_on(home: Path) -> None:
    (home / "breaks").touch()
    done = brings()
    assert done.returncode == 12 and done.stderr == "rsync: connection unexpectedly closed\n"
    assert "the keeper" not in done.stdout and not (home / "there/cache/code/abc").exists()
    assert (home / "there/cache/code/abc.part").exists()
    assert "the keeper" in brings().stdout and not (home / "there/cache/code/abc.part").exists()


def test_a_machine_that_is_not_there_says_why(home: Path) -> None:
    (home / "away").touch()
    done = brings()
    assert done.returncode == 255 and done.stderr == "ssh: connect to host node3 port 22: No route to host\n"
    assert done.stdout == ""


def test_what_the_nodes_share_is_not_copied() -> None:
    assert folders("/fsx/.trainyard/code/abc", JOB.format(path="/data/set"), "/fsx") == ["/data/set"]
    assert folders("/opt/code", JOB.format(path="/fsx/set"), "/fsx/") == ["/opt/code"]
