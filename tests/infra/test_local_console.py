"""A machine's console on this host: its file is bounded, and nothing of what keeps it so outlives the machine.

systemd-nspawn is played: it writes lines, as fast as a machine in trouble, until it is told to end.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from polling import until

from infra.clouds.local import cgroup, nspawn
from infra.clouds.local.nspawn import NspawnMachine

MACHINE = """#!/bin/sh
number=0
while [ ! -e "$PLAYED/end" ]; do
    for each in 1 2 3 4 5 6 7 8 9 10; do
        number=$((number + 1))
        echo "line $number of the machine"
    done
    sleep 0.01
done
exit $(cat "$PLAYED/end")
"""
MOST, KEPT = 20_000, 4_000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NspawnMachine:
    """A machine that has been started, whose console is looked at every 0.3 seconds."""
    script = nspawn.KEEPER_SCRIPT
    for name, value in {"EVERY": 0.3, "MOST": MOST, "KEPT": KEPT}.items():
        script, found = re.subn(rf"^{name}=\d+", f"{name}={value}", script, flags=re.MULTILINE)
        assert found == 1
    programs, group = tmp_path / "bin", tmp_path / "group"
    for folder in (programs, group, tmp_path / "machine"):
        folder.mkdir()
    (group / "cgroup.subtree_control").touch()
    (programs / "systemd-nspawn").write_text(MACHINE)
    (programs / "systemd-nspawn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PLAYED", str(tmp_path))
    monkeypatch.setattr(nspawn, "KEEPER_SCRIPT", script)
    monkeypatch.setattr(cgroup, "make", lambda *_words, **_options: [])
    monkeypatch.setattr(cgroup, "limit", lambda *_words, **_options: None)
    monkeypatch.setattr(cgroup, "unified", lambda *_words: group)
    monkeypatch.setattr(NspawnMachine, "_apart", lambda _self, argv, **_options: argv)
    monkeypatch.setattr(NspawnMachine, "_has_booted", lambda _self: True)
    made = NspawnMachine("yard", "node1", tmp_path / "machine")
    made.console.write_text("of a machine before\n")
    made.start([], cpus=1, memory_mb=256)
    return made


def running(machine: NspawnMachine) -> dict[psutil.Process, list[str]]:
    """The processes that keep or play the machine, with their command lines."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended
            if process.environ().get("PLAYED") == str(machine.directory.parent):
                found[process] = process.cmdline()
    return found


def shells(machine: NspawnMachine) -> list[psutil.Process]:
    """Those that run keep.sh: the first of them, what keeps the machine, and what bounds the console."""
    return [process for process, argv in running(machine).items() if "keep.sh" in argv and argv[0] == "sh"]


def watchers(machine: NspawnMachine) -> list[psutil.Process]:
    return [process for process, argv in running(machine).items() if argv[0] == "timeout"]


def end(machine: NspawnMachine, code: int) -> None:
    (machine.directory.parent / "end").write_text(f"{code}\n")
    until(lambda: not running(machine), 30, lambda: f"still there: {running(machine)}")


def test_a_console_is_cut_to_its_last_lines_while_the_machine_runs(machine: NspawnMachine) -> None:
    sizes: list[int] = []

    def is_cut_twice() -> bool:
        sizes.append(machine.console.stat().st_size)
        return sum(later < earlier for earlier, later in pairwise(sizes)) >= 2

    try:
        until(is_cut_twice, 120, lambda: f"sizes: {sizes[-20:]}")
        until(lambda: machine.console.stat().st_size > 2 * KEPT, 60)  # it goes on after that
    finally:
        end(machine, 0)
    text = machine.console.read_bytes()
    assert b"trainyard: what the console had said before is cut\n" in text and b"\0" not in text
    numbers = [int(number) for number in re.findall(rb"^line (\d+) of the machine$", text, re.MULTILINE)]
    assert len(numbers) > KEPT // 30 and numbers[0] > 1, "what was said last stays"
    assert numbers[-KEPT // 30 :] == list(range(numbers[-1] - KEPT // 30, numbers[-1] + 1)), "and nothing of it is lost"
    assert not machine.console.with_name("console.log.tail").exists()


def test_a_machine_that_has_ended_leaves_nothing_that_watches_its_console(machine: NspawnMachine) -> None:
    """Whoever looks for its processes would take it for alive."""
    until(lambda: watchers(machine) and machine.console.stat().st_size > 0, 30)
    end(machine, 1)
    assert "of a machine before" not in machine.console.read_text()


def test_what_watches_the_console_ends_with_a_keeper_that_is_killed(machine: NspawnMachine) -> None:
    until(lambda: watchers(machine) and machine.console.stat().st_size > 0, 30)  # before that, it is one of the shells
    parents = {process.ppid() for process in watchers(machine)}
    for process in shells(machine):
        if process.pid not in parents:
            process.kill()
    until(lambda: not shells(machine) and not watchers(machine), 30, "it has ended")
    assert running(machine), "the machine has not: its console is not its life"
    end(machine, 0)
