"""`fab demo` ends what it has made itself, and nothing else."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile.stacks import orphans, pulumi_cli, removal
from infra.config import stack_file

demo: Any = importlib.import_module("fabfile.verbs.demo")  # the package has the verb under this name

HOLD = """
import fcntl, os, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(f"{os.getpid()}\\n"); file.flush()
print("held", flush=True)
sys.stdin.read()
"""


class Played:
    """The verbs that a demo calls; `codes` are what they end with, 0 where nothing else is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.lines: list[list[str]] = []
        """Each verb with its words."""
        self.stacks: set[str] = set()
        self.codes: dict[str, int] = {}
        self.there: list[dict[str, Any]] = []
        self.state: list[str] = []
        monkeypatch.setattr(demo, "_verb", self.verb)
        monkeypatch.setattr(demo, "_figures", lambda _stack, _job: [])
        monkeypatch.setattr(orphans, "facts_of", lambda _stack: {"cloud": ""})
        monkeypatch.setattr(orphans, "find", lambda *_args: self.there)
        monkeypatch.setattr(removal, "names", lambda _stack: self.state)

    def verb(self, argv: Sequence[str], stack: str) -> int:
        self.ran.append(argv[0])
        self.lines.append(list(argv))
        self.stacks.add(stack)
        return self.codes.get(argv[0], 0)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Played(monkeypatch)


def test_a_demo_goes_through_its_story_and_leaves_no_lock(played: Played, tmp_path: Path) -> None:
    demo.demo(Context())
    assert played.ran == [*(part.argv[0] for part in demo.story("demo")), "destroy"] and played.stacks == {"demo"}
    assert not (tmp_path / ".trainyard" / "demo.lock").exists()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_gets_every_tenth_of_the_steps_and_a_terminal_its_live_line(
    terminal: bool, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "is_terminal", lambda file: terminal and file is sys.stdout)
    demo.demo(Context(), job="smoke")
    train = next(line for line in played.lines if line[0] == "train")
    assert train == ["train", "smoke", *([] if terminal else ["--every", "2"])], "smoke has 20 steps"
    assert not any("--every" in line for line in played.lines if line is not train), "no other verb takes it"


@pytest.mark.parametrize("scheduler", demo.STACKS)
def test_before_each_part_the_demo_says_what_comes_and_how_long_it_takes(
    scheduler: str, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.demo(Context(), scheduler=scheduler, job="smoke")
    parts = re.findall(r"^# .+ \(about .+\)\n\$ fab (\w+)", capsys.readouterr().out, re.MULTILINE)
    assert parts == played.ran


def test_the_same_demo_on_slurm_has_a_stack_of_its_own(played: Played) -> None:
    demo.demo(Context(), scheduler="slurm", job="smoke")
    assert played.ran == [*(part.argv[0] for part in demo.story("smoke")), "destroy"] and played.stacks == {
        "demo-slurm"
    }


def test_each_scheduler_has_a_stack_of_its_own() -> None:
    stacks = {scheduler: stack_file.read(stack) for scheduler, stack in demo.STACKS.items()}
    assert {keys.get("scheduler", "none") for keys in stacks.values()} == set(stacks)
    assert {keys["cluster"] for keys in stacks.values()} == {"local"}
    assert len({keys["cidr"] for keys in stacks.values()}) == len(stacks)


def test_a_scheduler_that_there_is_not_is_refused(played: Played) -> None:
    with pytest.raises(Exit, match="--scheduler kube: must be none or slurm or kubernetes") as no:
        demo.demo(Context(), scheduler="kube")
    assert no.value.code == 2 and played.ran == []


def test_a_demo_that_fails_takes_down_what_it_has_made(played: Played) -> None:
    played.codes["wait"] = 1
    with pytest.raises(Exit, match="the demo stopped: fab wait"):
        demo.demo(Context())
    assert played.ran == ["up", "wait", "destroy"]


def test_a_second_demo_is_refused_and_ends_nothing_of_the_first(played: Played, tmp_path: Path) -> None:
    path = tmp_path / ".trainyard" / "demo.lock"
    path.parent.mkdir()
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(Exit, match=f"a demo is running already .process {first.pid}.") as no:
            demo.demo(Context())
        assert no.value.code == 1 and played.ran == []
    finally:
        first.communicate("")
    demo.demo(Context())


@pytest.mark.parametrize("whose", ["", "bob (home /home/bob)"])
def test_a_cluster_that_is_there_already_is_neither_used_nor_removed(whose: str, played: Played) -> None:
    played.there = [{"kind": "cgroup", "ours": not whose, "whose": whose, "unseen": False}]
    with pytest.raises(Exit, match=re.escape(whose) or "fab destroy --stack demo") as no:
        demo.demo(Context())
    assert no.value.code == 1 and played.ran == []


def test_a_state_without_machines_is_somebodys_as_well(played: Played) -> None:
    played.state = ["network"]
    with pytest.raises(Exit, match="fab destroy --stack demo"):
        demo.demo(Context())
    assert played.ran == []


USER = 54321


@pytest.fixture
def sudo(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who runs the demo with sudo; root's file elsewhere, to which a link leads."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    monkeypatch.setenv("SUDO_UID", str(USER))
    monkeypatch.setenv("SUDO_GID", str(USER))
    home, checkout = tmp_path / "home", tmp_path / "checkout"
    for folder in (home / ".pulumi" / "stacks", home / ".ssh", checkout / ".pulumi", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("root's")
    (home / ".pulumi" / "link").symlink_to(tmp_path / "elsewhere")
    os.link(tmp_path / "elsewhere" / "file", home / ".pulumi" / "second name")
    os.chown(home, USER, USER)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(pulumi_cli, "ROOT", checkout)
    return home


def owners(*paths: Path) -> set[int]:
    return {path.lstat().st_uid for path in paths}


@pytest.mark.parametrize("fails", [False, True])
def test_what_root_made_in_a_users_home_is_given_to_the_user(fails: bool, sudo: Path, played: Played) -> None:
    """A later `up` of the user's own would end in `Permission denied`."""
    played.codes["wait"] = int(fails)
    with pytest.raises(Exit) if fails else contextlib.nullcontext():
        demo.demo(Context())
    assert (sudo / ".trainyard").is_dir()
    given = [sudo / ".trainyard", *(sudo / ".pulumi").rglob("[!s]*"), sudo.parent / "checkout" / ".pulumi" / "file"]
    assert owners(*given, sudo / ".pulumi", sudo / ".pulumi" / "stacks") == {USER}
    elsewhere = sudo.parent / "elsewhere"
    assert owners(sudo / ".ssh", sudo / ".ssh" / "file", elsewhere, elsewhere / "file") == {0}


def test_a_home_that_is_roots_stays_roots(sudo: Path) -> None:
    os.chown(sudo, 0, 0)
    demo.demo(Context())
    assert owners(sudo / ".trainyard", sudo / ".pulumi") == {0}


def test_without_sudo_nothing_changes_hands(sudo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID")
    demo.demo(Context())
    assert owners(sudo / ".trainyard", sudo / ".pulumi") == {0}
