"""infra.clouds.local: system commands, locks, and what a killed systemd-nspawn leaves."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from infra.clouds.local import nspawn, system_command
from infra.state import operation


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["no-such-command"], "no-such-command: command not found"),
        (["sh", "-c", "echo 1; echo 2; echo 3; echo 4 >&2; exit 3"], "exit code 3: 4"),
        (["false"], "exit code 1: it printed nothing"),
        (["sleep", "60"], "sleep 60: no end within 0 s"),
    ],
)
def test_a_failing_command_says_which_and_why(argv: list[str], expected: str) -> None:
    with pytest.raises(system_command.SystemCommandError) as caught:
        system_command.run(argv, timeout=0.3 if argv[0] == "sleep" else 30)
    assert expected in str(caught.value)


def test_a_watched_command_ends_when_nobody_wants_it(tmp_path: Path) -> None:
    def check() -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            raise operation.Cancelled("interrupted")

    with pytest.raises(operation.Cancelled):
        system_command.run_watched(
            ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"], [], tmp_path, timeout=60, check=check
        )
    child = Path("/proc") / (tmp_path / "pid").read_text().strip()
    deadline = time.monotonic() + 5  # it has its signal, and a busy machine may take a moment to end it
    while child.exists() and "Z" not in (child / "stat").read_text():
        assert time.monotonic() < deadline, "nor do its children go on"
        time.sleep(0.01)


def _hold(directory: Path, exclusive: bool, held: Any, done: Any) -> None:
    with operation.lock(directory, exclusive=exclusive):
        held.set()
        done.wait(60)


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_lock_keeps_others_out_and_dies_with_its_holder(exclusive: bool, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "lock", exclusive, held, done))
    process.start()
    try:
        assert held.wait(30)
        with (
            pytest.raises(operation.LockBusy) as caught,
            operation.lock(tmp_path / "lock", exclusive=not exclusive, timeout=0.1),
        ):
            pass
        assert caught.value.holder == process.pid
        if not exclusive:
            with operation.lock(tmp_path / "lock", timeout=5):
                pass
    finally:
        process.kill()
        process.join(30)
    with operation.lock(tmp_path / "lock", exclusive=True, timeout=5):
        pass


def test_a_lock_of_a_directory_that_was_removed_is_taken_on_the_new_one(tmp_path: Path) -> None:
    with operation.lock(tmp_path / "lock", exclusive=True):
        (tmp_path / "lock").rmdir()
        with operation.lock(tmp_path / "lock", exclusive=True, timeout=5):
            assert (tmp_path / "lock").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_what_a_killed_nspawn_has_mounted_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd 257 exports a machine's sockets in a read-only mount of its own: to remove the folder was an OSError."""
    monkeypatch.setattr(nspawn, "NSPAWN_RUN", tmp_path)
    export = tmp_path / "unix-export" / "lab-node1"
    export.mkdir(parents=True)
    system_command.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "none", str(export)])
    try:
        nspawn.NspawnMachine("lab", "node1", tmp_path / "nodes" / "node1").stop()
        assert not export.exists()
    finally:
        if os.path.ismount(export):
            system_command.run(["umount", str(export)])
