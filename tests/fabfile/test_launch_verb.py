"""`fab launch` with a backend in this process: what is asked of it, what it refuses, what follows."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from fab_command import fab
from invoke.exceptions import Exit
from memory_backend import MemoryBackend

from fabfile.backends.base import JobState
from fabfile.remote import known_hosts
from fabfile.secret_names import keep_secret_names, kept_secret_names
from fabfile.user_program import name_of


@pytest.fixture(autouse=True)
def work(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a program in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return folder


def test_a_program_is_followed_to_its_end(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("launch", "--nodes", "2", "--", "python", "train.py", "--lr", "1e-3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "train-1: 2 processes of python train.py --lr 1e-3 on node1, node2"
    assert lines[-1] == "next: fab fetch train-1"
    sent = backend.programs["train-1"]
    assert sent.argv == ("python", "train.py", "--lr", "1e-3") and len(sent.workdir) == 64


def test_what_the_command_line_says_wins_over_launch_toml(
    backend: MemoryBackend, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "k")
    (work / "launch.toml").write_text(
        'name = "one"\nper = "node"\ngrace = 5\nsecrets = ["KEY"]\ncommand = "python train.py"\n'
        '[environment]\nA = "file"\nB = "file"\n'
    )
    assert fab("launch", "--env", "A=line", "--per", "head") == 0
    sent = backend.programs["one-1"]
    assert sent.argv == ("python", "train.py") and (sent.per, sent.grace, sent.secrets) == ("head", 5.0, ("KEY",))
    assert dict(sent.environment) == {"A": "line", "B": "file"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "which program? fab launch [options] -- COMMAND ..., or command = [...] in launch.toml"),
        (["--per", "core", "a"], "--per core: must be slot, node or head"),
        (["--nodes", "9", "a"], "--nodes 9: memory has 3"),
        (["--env", "A", "a"], "--env A: must be NAME=VALUE"),
        (["--env", "1A=x", "a"], "environment: '1A' is no name of a variable"),
        (["--env", "RANK=1", "a"], "variable RANK: is set for every process by fab launch: leave it out"),
        (["--env", "TRAINYARD_JOB=x", "a"], "variable TRAINYARD_JOB: is set"),
        (["--secret", "NOT_SET_HERE", "a"], "secret NOT_SET_HERE: is not set here"),
        (["--secret", "HOME", "--env", "HOME=x", "a"], "variable HOME: is named as a secret, and with a value"),
        (["--name", "Big Name", "a"], "--name Big Name: must be 1 to 40 of a-z, 0-9 and -, a letter first"),
        (["--workdir", "nowhere", "a"], "working directory"),
        (["--requirements", "nowhere.txt", "a"], "requirements nowhere.txt: No such file"),
        (["--file", "nowhere.toml", "a"], "nowhere.toml: No such file"),
        (["--time-limit", "soon", "a"], "--time-limit soon: must be a number with s, m, h or d"),
        (["--name", "1b", "a"], "--name 1b: must be 1 to 40 of a-z, 0-9 and -, a letter first"),
        (["--grace", "-1", "a"], "fab launch: --grace"),
        (["--grace", "86401", "a"], "--grace 86401: must be a number of seconds from 0 to 86400"),
        (["--resume", "none-9"], "no job 'none-9' on memory"),
        (["--lr", "1", "a"], "fab launch: there is no option --lr"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(
    words: list[str], line: str, backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("launch", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith(line) and error.count("\n") == 1 and backend.table == []


def test_a_dry_run_starts_nothing(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("launch", "--dry-run", "--", "python", "train.py") == 0
    assert capsys.readouterr().out == "would run train on 3 nodes\n" and backend.table == []


def test_the_programs_exit_code_is_that_of_the_verb(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    backend.ends = (JobState.FAILED, 7, "rank 1 on node2 ended with exit code 7: no such column")
    assert fab("launch", "python", "train.py") == 7
    assert "next: fab logs train-1   (go on: fab launch --resume train-1)" in capsys.readouterr().err


def test_a_job_goes_on_with_what_it_was_started_with(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("launch", "--nodes", "2", "--env", "A=1", "--", "python", "train.py") == 0
    before = backend.programs["train-1"]
    assert fab("launch", "--resume", "latest", "--env", "B=2", "--", "python", "train.py", "--resume") == 0
    after = backend.programs["train-1"]
    assert after.argv == ("python", "train.py", "--resume") and after.workdir == before.workdir
    assert after.environment == (("A", "1"), ("B", "2"))
    output = capsys.readouterr().out
    assert "train-1: command: python train.py -> python train.py --resume\n" in output
    assert "train-1: nodes: 2, as it had (--nodes N changes that)\n" in output
    for name in ("workdir", "file"):
        assert fab("launch", "--resume", "latest", f"--{name}", "x") == 2
        assert f"--{name} x: a job that is resumed goes on in its directory" in capsys.readouterr().err


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a variable of the operator's that no job is to have."""
    monkeypatch.setenv("KEY", "k")
    monkeypatch.setenv("MORE", "m")
    monkeypatch.setenv("CLOUD_SECRET_KEY", "the operator's")
    return "CLOUD_SECRET_KEY"


def sent(backend: MemoryBackend) -> list[str]:
    """The names of the secrets that went with the job last."""
    return list(backend.programs["train-1"].secrets)


def lie(backend: MemoryBackend, *names: str) -> None:
    """Let the head's record of the job name these secrets."""
    backend.programs["train-1"] = replace(backend.programs["train-1"], secrets=names)


def test_a_heads_record_names_no_secret_of_the_operators(
    backend: MemoryBackend, home: Path, canary: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--yes` is no answer, as it names none; nor is a dry run, which says what would be sent."""
    assert fab("launch", "--secret", "KEY", "--", "python", "train.py") == 0
    record = home / ".trainyard/memory/launched/train-1.json"
    assert json.loads(record.read_text()) == {"secrets": ["KEY"]} and record.stat().st_mode & 0o777 == 0o600
    lie(backend, "KEY", canary)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    capsys.readouterr()
    for more in ([], ["--yes"], ["--dry-run"], ["--secret", "MORE"]):
        assert fab("launch", "--resume", "train-1", *more) == 2
        error = capsys.readouterr().err
        assert error.startswith(
            "train-1: its record on the head names secrets that this machine has not sent with it: "
        )
        assert error.endswith(
            f"{canary}; there is no terminal to ask on: if they may go there, add --secret {canary}\n"
        )
        assert error.count("\n") == 1
    assert len(backend.asked) == 1, "nothing was submitted"

    lie(backend)
    assert fab("launch", "--resume", "train-1", "--secret", "MORE") == 0
    assert sent(backend) == ["KEY", "MORE"], "what went before goes, whatever the head says"
    lie(backend, canary)
    assert fab("launch", "--resume", "train-1", "--secret", canary) == 0
    assert sent(backend) == ["KEY", "MORE", canary], "the operator has named it"
    assert fab("launch", "--resume", "train-1") == 0
    known_hosts.forget("memory")
    assert not record.exists()


def test_of_more_secrets_a_terminal_is_asked_once(
    backend: MemoryBackend, home: Path, canary: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a job that another machine has launched."""
    assert fab("launch", "python", "train.py") == 0
    assert not (home / ".trainyard/memory/launched").exists()
    lie(backend, "KEY", canary)
    questions = []

    def answer(question: str) -> str:
        questions.append(question)
        return "y" if len(questions) > 1 else ""

    monkeypatch.setattr(sys, "stdin", Mock(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", answer)
    assert fab("launch", "--resume", "train-1", "--yes") == 1 and len(backend.asked) == 1
    assert f": KEY, {canary}\nsend their values there? [y/N]" in questions[0]
    assert fab("launch", "--resume", "train-1") == 0 and len(questions) == 2
    assert sent(backend) == ["KEY", canary]
    assert fab("launch", "--resume", "train-1") == 0 and len(questions) == 2, "they have gone there now"


def test_a_record_of_secrets_is_damaged(
    backend: MemoryBackend, home: Path, canary: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("launch", "--secret", "KEY", "--", "python", "train.py") == 0
    path = home / ".trainyard/memory/launched/train-1.json"
    for text in ("{", "[]", "{}", '{"secrets": "KEY"}', '{"secrets": [1]}'):
        path.write_text(text)
        capsys.readouterr()
        assert fab("launch", "--resume", "train-1") == 2
        assert capsys.readouterr().err.startswith(f"{path}: not a record of secrets (")


@pytest.mark.parametrize("job", ["../../.ssh/authorized_keys-1", "/etc/x-1", "train-1/../../x", "train", "", "a\n-1"])
def test_no_secrets_are_recorded_for_what_is_no_id(job: str, home: Path) -> None:
    for act in (lambda: keep_secret_names("memory", job, ["KEY"]), lambda: kept_secret_names("memory", job)):
        with pytest.raises(Exit, match="is no job's id"):
            act()
    assert not (home / ".trainyard").exists()


def test_only_the_operators_file_of_requirements_goes_to_pip_here_as_it_is(backend: MemoryBackend, work: Path) -> None:
    (work / "more.txt").write_text("--index-url https://example.org/simple\nnumpy\n")
    assert fab("launch", "--requirements", "more.txt", "--", "python", "train.py") == 0
    assert fab("launch", "--resume", "train-1") == 0
    assert fab("launch", "--resume", "train-1", "--requirements", "more.txt") == 0
    assert [each.own_requirements for each in backend.asked] == [True, False, True]


def test_each_verb_names_the_one_that_is_for_the_other_kind_of_job(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("launch", "python", "train.py") == 0 and fab("train", "smoke") == 0
    capsys.readouterr()
    for words, line in (
        (["train", "--resume", "train-1"], "train-1 ran a program, not the trainer: go on with it by fab launch"),
        (["sample", "train-1"], "train-1 ran a program, not the trainer: its files: fab fetch train-1"),
        (["fetch", "train-1", "--weights"], "train-1 ran a program, not the trainer: leave out --weights"),
        (["launch", "--resume", "smoke-2"], "smoke-2 ran the trainer: go on with it by fab train --resume smoke-2"),
    ):
        assert fab(*words) == 2
        assert capsys.readouterr().err.startswith(line)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("torchrun --nproc-per-node 2 my/Train_GPT.py", "train-gpt"),
        ("python -m pkg.tune --x", "tune"),
        ("./a.out", "a-out"),
        ("/usr/bin/env", "env"),
        ("7z", "job-7z"),
        ("...", "job"),
    ],
)
def test_a_job_is_called_as_its_program(command: str, name: str) -> None:
    assert name_of(command.split()) == name
