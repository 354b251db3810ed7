"""launch.toml: what it may say, and one line for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from invoke.exceptions import Exit

from fabfile import launch_file
from fabfile.launch_file import LaunchFile


def loaded(folder: Path, text: str | bytes) -> LaunchFile:
    path = folder / "launch.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return launch_file.load(path)


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """
name = "nano-gpt"
per = "node"
workdir = "src"
requirements = "more.txt"
grace = 5
secrets = ["HF_TOKEN", "HF_TOKEN", "WANDB_API_KEY"]
command = ["python", "train.py", "--out dir=x y"]
[environment]
OMP = "1"
EMPTY = ""
"""
    assert loaded(tmp_path, text) == LaunchFile(
        name="nano-gpt",
        per="node",
        workdir=str(tmp_path / "src"),
        requirements=str(tmp_path / "more.txt"),
        grace=5.0,
        secrets=("HF_TOKEN", "WANDB_API_KEY"),
        command=("python", "train.py", "--out dir=x y"),
        environment=(("OMP", "1"), ("EMPTY", "")),
    )


def test_a_command_may_be_one_text(tmp_path: Path) -> None:
    assert loaded(tmp_path, "command = 'python train.py --text=\"a b\"'").command == (
        "python",
        "train.py",
        "--text=a b",
    )


def test_places_are_relative_to_the_file_and_the_home_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    found = loaded(tmp_path, "workdir = '~/x'\nrequirements = '/etc/more.txt'")
    assert (found.workdir, found.requirements) == ("/nonexistent/x", "/etc/more.txt")


def test_it_is_found_in_the_working_directory_unless_another_is_given(tmp_path: Path) -> None:
    assert launch_file.find(tmp_path) == LaunchFile()
    loaded(tmp_path, "name = 'one'")
    (tmp_path / "other.toml").write_text("name = 'two'")
    assert launch_file.find(tmp_path).name == "one"
    assert launch_file.find(tmp_path, str(tmp_path / "other.toml")).name == "two"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "nmae = 'x'",
            "there is no key 'nmae'; did you mean name? (the keys: name, per, workdir, requirements, grace,",
        ),
        ("[env]\nA = '1'", "there is no key 'env'"),
        ("name = '1b'", "name = '1b': must be 1 to 40 of a-z, 0-9 and -, a letter first"),
        ("name = 'Has Blanks'", "name = 'Has Blanks': must be 1 to 40 of a-z, 0-9 and -"),
        ("name = '../x'", "name = '../x': must be"),
        (f"name = '{'x' * 41}'", "must be 1 to 40"),
        ("name = 1", "name = 1: must be"),
        ("per = 'rank'", "per = 'rank': must be slot, node or head"),
        ("per = []", "per = []: must be"),
        ("workdir = 3", "workdir = 3: must be a path"),
        ('workdir = "a\\u0000b"', "must be a path"),
        ("requirements = ['torch']", "requirements = ['torch']: must be a path"),
        ("grace = -1", "grace = -1: must be a number of seconds from 0 to 86400"),
        ("grace = true", "grace = True: must be"),
        ("grace = nan", "grace = nan: must be"),
        ("grace = '30'", "grace = '30': must be"),
        ("environment = 'A=1'", "environment = 'A=1': must be a table"),
        ("[environment]\nA = 1", "environment.A = 1: must be text"),
        ("[environment]\n'A B' = '1'", "environment: 'A B' is no name of a variable"),
        ('[environment]\nA = "\\u0000"', "environment.A = '\\x00': must be text"),
        ("secrets = 'TOKEN'", "secrets = 'TOKEN': must be a list of names"),
        ("secrets = [1]", "secrets = [1]: must be a list of names"),
        ("secrets = ['TOKEN=x']", "secrets: 'TOKEN=x' is no name of a variable"),
        ("command = 'python \"x'", "command = 'python \"x': No closing quotation"),
        ("command = ['python', 1]", "must be a list of words, or one text"),
        ("command = 1", "command = 1: must be a list of words"),
        ("name =", "not TOML: "),
        (b"name = '\xff'", "not TOML: "),
        ("x=" + "[" * 20_000, "not TOML: "),
        ("# " + "x" * (1 << 20), "has more than 1 MiB"),
    ],
    ids=lambda value: None if len(value) < 60 else "long",
)
def test_bad_input_is_one_line(text: str | bytes, line: str, tmp_path: Path) -> None:
    with pytest.raises(Exit) as caught:
        loaded(tmp_path, text)
    message = str(caught.value.message)
    assert caught.value.code == 2 and "\n" not in message
    assert message.startswith(f"{tmp_path / 'launch.toml'}: ") and line in message


@pytest.mark.parametrize(("name", "line"), [("none.toml", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_one_line(name: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(Exit, match=line) as caught:
        launch_file.find(tmp_path, str(tmp_path / name))
    assert caught.value.code == 2
