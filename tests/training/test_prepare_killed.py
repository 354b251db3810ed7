"""prepare again, killed, cut off, on a full disk: whole in the end, and never whole before."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_corpus import contents, run

from training.data import prepare, token_set
from training.manifest import NAME, WORK, TokenError

pytestmark = pytest.mark.faults

pytest_plugins = ["corpus_fixtures"]


def test_again_is_nothing_to_do_and_another_wish_is_refused(
    folder: Path, ranks: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    arguments = ["--out", out, "--ranks", ranks, folder]
    assert run(*arguments) == 0
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert run(*arguments) == 0
    assert "already exists" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert run(*arguments, "--seed", 7) == 2
    assert run(*arguments, "--seed", 7, "--overwrite") == 0
    assert token_set.open(out, verify=True).manifest["settings"]["seed"] == 7
    future = time.time() + 100
    os.utime(folder / "part0" / "00.txt", (future, future))  # the same size, other content perhaps
    assert run(*arguments, "--seed", 7) == 2
    assert "--overwrite" in capsys.readouterr().err


KILLED = """
import sys
from training.data import encode, prepare
from training.data import prepare_journal
encode.BATCH, prepare_journal.COMMIT = 2000, 0.0
begin = prepare_journal.PrepareJournal.begin
prepare_journal.PrepareJournal.begin = lambda self: (begin(self), print("begun", flush=True))
sys.exit(prepare.main(sys.argv[1:]))
"""


def start(*arguments: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(prepare.__file__).parents[2])}
    command = [sys.executable, "-c", KILLED, *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def await_work(process: subprocess.Popen[bytes]) -> None:
    """Until it goes on with what there was, or begins: after its imports, whose time says nothing of its work's."""
    assert process.stdout
    assert b"begun\n" in iter(process.stdout.readline, b"")


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """SIGKILL again and again, at seeded moments of its work, until one run comes to its end."""
    draw = random.Random(5)
    wish = ["--train-vocab", 300, "--val-fraction", 0.1, folder]
    process = start("--out", tmp_path / "whole", *wish)
    await_work(process)
    began = time.monotonic()
    process.communicate()
    assert process.returncode == 0
    life = time.monotonic() - began
    expected, out, resumed = contents(tmp_path / "whole"), tmp_path / "out", 0
    for kill in range(12):
        process = start("--out", out, *wish)
        if kill % 3:  # else perhaps before it has found what an earlier one has left
            await_work(process)
        time.sleep(life * draw.uniform(0, 1.1))
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        resumed += b"continuing after" in err
        if (out / NAME).exists():
            token_set.open(out, verify=True)
            shutil.rmtree(out)
        elif out.exists():
            with pytest.raises(TokenError, match=r"unfinished|no token set"):
                token_set.open(out)
        assert kill < 11 or resumed
    process = start("--out", out, *wish)
    process.communicate()
    assert process.returncode == 0
    assert contents(out) == expected


@pytest.mark.parametrize("seed", range(12))
def test_stopped_between_any_two_steps(folder: Path, ranks: Path, tmp_path: Path, monkeypatch: Any, seed: int) -> None:
    """The same, cut off right before the n-th change that reaches the disk: also between the last renames."""
    monkeypatch.setattr("training.data.encode.BATCH", 4000)
    monkeypatch.setattr("training.data.prepare_journal.COMMIT", 0.0)
    wish = ["--ranks", ranks, "--val-fraction", 0.1, folder]
    assert run("--out", tmp_path / "whole", *wish) == 0

    class Cut(BaseException):
        pass

    remaining = [0]

    def counted(method: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            remaining[0] -= 1
            if remaining[0] == 0:
                raise Cut
            return method(*arguments, **keywords)

        return call

    for owner, name in ((Path, "replace"), (Path, "unlink"), (os, "fsync"), (Path, "mkdir"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    out, steps, cuts = tmp_path / "out", 1 + seed, 0
    while not (out / NAME).exists():
        remaining[0] = steps
        try:
            run("--out", out, *wish)
        except Cut:
            cuts += 1
            steps += 12
        remaining[0] = 0
        if not (out / NAME).exists():
            with pytest.raises(TokenError):
                token_set.open(out)
    assert cuts
    assert run("--out", out, *wish) == 0
    assert contents(out) == contents(tmp_path / "whole")


def test_unfinished_work_that_was_altered_is_not_trusted(
    folder: Path, ranks: Path, tmp_path: Path, capsys: Any
) -> None:
    wish = ["--ranks", ranks, folder]
    assert run("--out", tmp_path / "whole", *wish) == 0
    out = tmp_path / "out"
    shutil.copytree(tmp_path / "whole", out / WORK)
    for content in ('{"settings": {}}', "", "not JSON"):
        (out / WORK / "journal.json").write_text(content)
        assert run("--out", out, *wish) == 0
        assert contents(out) == contents(tmp_path / "whole")
        assert "starting over" in capsys.readouterr().err
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "whole", out / WORK)


def test_two_at_once_in_one_folder(folder: Path, ranks: Path, tmp_path: Path, capsys: Any) -> None:
    from training.data.prepare_journal import PrepareJournal

    first = PrepareJournal(tmp_path / "out", {})
    assert run("--out", tmp_path / "out", "--ranks", ranks, folder) == 2
    assert "another process is writing there" in capsys.readouterr().err
    first.close()


@pytest.mark.skipif(bool(os.geteuid()), reason="mounts a small disk")
def test_a_full_disk_is_said_and_gone_on_from(folder: Path, ranks: Path, tmp_path: Path, capsys: Any) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        assert run("--out", disk / "out", "--ranks", ranks, folder) == 1
        err = capsys.readouterr().err
        assert "No space left on device" in err and "Traceback" not in err
        with pytest.raises(TokenError):
            token_set.open(disk / "out")
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        assert run("--out", disk / "out", "--ranks", ranks, folder) == 0
        token_set.open(disk / "out", verify=True)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_source_that_changes_meanwhile_is_not_finished(
    folder: Path, ranks: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    original = prepare.tokenise

    def changing(*arguments: Any) -> None:
        original(*arguments)
        (folder / "part0" / "new.txt").write_text("new")

    monkeypatch.setattr(prepare, "tokenise", changing)
    assert run("--out", tmp_path / "out", "--ranks", ranks, folder) == 2
    with pytest.raises(TokenError):
        token_set.open(tmp_path / "out")
