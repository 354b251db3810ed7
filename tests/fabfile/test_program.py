"""The command itself: what is refused before anything runs, where it runs, and how a verb ends."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task
from sample_inputs import public_key

from fabfile import output, program, verbs
from fabfile.command_line import Verb

ROOT = Path(__file__).resolve().parents[2]


OWN = [sys.executable, "-m", "fabfile"]


FABRICS = [sys.executable, "-m", "fabric"]
"""Fabric's own `fab`, which finds the collection in the checkout."""


VERBS = program.verbs()


def command(
    *words: str | bytes, start: Sequence[str] = OWN, cwd: Path = ROOT, **env: str
) -> subprocess.CompletedProcess[str]:
    """The command, in an environment with no stack, no home and nothing of a cloud in it."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [*start, *words], cwd=cwd, env=bare, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


def test_every_task_is_a_verb_with_the_file_that_has_it() -> None:
    """FILES is written by hand, so that a command need not load every file to find its verb."""
    found = {
        each.name: module.name
        for module in pkgutil.iter_modules(verbs.__path__)
        for each in vars(importlib.import_module(f"fabfile.verbs.{module.name}")).values()
        if isinstance(each, Task) and each.body.__module__ == f"fabfile.verbs.{module.name}"
    }
    assert found == verbs.FILES and list(verbs.FILES) == sorted(found)


def test_a_verb_loads_its_own_file_alone() -> None:
    code = "import sys; from fabfile import program; program.run(['config', 'x', 'y', 'z']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    loaded = {name for name in done.stdout.split() if name.startswith("fabfile.verbs.")}
    assert loaded == {"fabfile.verbs.config"}, done.stderr


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_after_a_verb_shows_help_and_does_nothing(
    name: str, flag: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    verb = VERBS[name]
    monkeypatch.setattr(verb, "body", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr(program, "verbs", lambda: VERBS)
    for words in ([name, flag], [name, "x", "--yes", flag, "y"], [flag, name]):
        assert program.run(words) == 0
        out, err = capfd.readouterr()
        assert out.startswith(f"usage: fab {name}") and err == ""


@pytest.mark.parametrize("start", [OWN, FABRICS], ids=["own", "fabric's"])
def test_help_is_help_for_both_commands(start: list[str]) -> None:
    done = command("destroy", "--help", start=start)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("usage: fab destroy")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-R destroy --yes", "fab: -R is an option of Fabric that no verb here supports"),
        ("--dry destroy --yes", "fab: --dry is an option of Fabric that"),
        ("-H host up --yes", "fab: -H is an option of Fabric that"),
        ("-e up --yes", "fab: -e is an option of Fabric that"),
        ("-S file up --yes", "fab: -S is an option of Fabric that"),
        ("-T abc up", "fab: -T is an option of Fabric that"),
        ("-c x up", "fab: -c is an option of Fabric that"),
        ("--prompt-for-login-password up", "fab: --prompt-for-login-password is an option of Fabric that"),
        ("--list-agent-keys up", "fab: --list-agent-keys is an option of Fabric that"),
        ("destroy --yes -R", "fab destroy: there is no option -R"),
        ("--stack x up", "fab: --stack must come after the verb"),
        ("up wait", "fab up: one verb at a time: fab up ... && fab wait"),
        ("destory", "fab: there is no verb 'destory'; did you mean destroy?"),
        ("status --stak x", "fab status: there is no option --stak; did you mean --stack?"),
        ("run", "fab run: COMMAND is missing"),
        ("status --stack x --inventory y", "fab status: --stack and --inventory: each names a cluster"),
        ("destroy --yes --stack x --stack y", "fab destroy: --stack: is given twice, as x and as y: give it once"),
        ("destroy --yes --stack=", "fab destroy: --stack: is empty: give it a value, or leave it out"),
        ("prepare dmeo", "there is no job 'dmeo'; did you mean demo?"),
        ("train dmeo", "there is no job 'dmeo'; did you mean demo?"),
        ("launch --per core -- a", "--per core: must be slot, node or head"),
        ("launch --workdir /nowhere -- a", "working directory /nowhere: there is no such folder"),
    ],
)
def test_what_no_verb_honours_is_refused_before_anything_runs(
    words: str, line: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert program.run(words.split()) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith(line) and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-R destroy --yes", "fab: -R is an option of Fabric that no verb here supports"),
        ("-S file up --yes", "fab: -S is an option of Fabric that"),
        ("destroy --yes -R", "fab destroy: there is no option -R"),
        ("up wait", "fab up: one verb at a time: fab up ... && fab wait"),
    ],
)
def test_fabrics_own_command_refuses_it_as_well(words: str, line: str) -> None:
    done = command(*words.split(), start=FABRICS)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith(line) and len(done.stderr.splitlines()) == 1


def test_an_empty_variable_names_no_stack() -> None:
    done = command("config", TRAINYARD_STACK="")
    assert done.returncode == 0 and "stacks/Pulumi.local.yaml" in done.stdout, done


def test_settings_of_invokes_in_the_home_directory_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".invoke.yaml").write_text("tasks: [")
    for home in (tmp_path, tmp_path / ".invoke.yaml"):  # the second is no folder
        done = command("status", "--inventory", "/nowhere", HOME=str(home))
        assert (done.returncode, done.stderr) == (2, "/nowhere: No such file or directory\n")


def test_the_fab_script_is_fabrics_where_another_fabfile_is_nearer(tmp_path: Path) -> None:
    (tmp_path / "fabfile.py").write_text(
        "from invoke import task\n\n\n@task\ndef other(c):\n    '''Somebody else's.'''\n    print('theirs')\n"
    )
    script = [sys.executable, "-c", "from fabfile.program import fab; fab()"]
    assert command("other", start=script, cwd=tmp_path, PYTHONSAFEPATH="1").stdout == "theirs\n"


def test_the_fab_script_runs_the_checkout_that_it_is_called_in(tmp_path: Path) -> None:
    """With two checkouts and one installation, `fab` must never act on the other one's stacks."""
    for name in ("fabfile", "infra", "node", "pyproject.toml", "Pulumi.yaml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    verb = tmp_path / "fabfile/verbs/images.py"
    verb.write_text(verb.read_text().replace("List the golden images", "Of the other checkout: list the images"))
    script = [sys.executable, "-c", "from fabfile.program import fab; fab()"]
    done = command("--list", start=script, cwd=tmp_path, PYTHONSAFEPATH="1")
    assert "Of the other checkout" in done.stdout, done.stderr


def test_both_scripts_of_the_installation_are_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"trainyard": "fabfile.program:main", "fab": "fabfile.program:fab"}
    assert callable(program.main) and callable(program.fab)


def test_bare_fab_says_where_to_begin(capfd: pytest.CaptureFixture[str]) -> None:
    assert program.run([]) == 0
    for text in (capfd.readouterr().out, command(start=FABRICS).stdout):
        verbs = [line.split()[1] for line in text.splitlines() if line.startswith("    fab ")]
        assert verbs == ["up", "wait", "check", "prepare", "train", "logs", "destroy"]
        assert "fab --list" in text and "-R" not in text


def test_every_verb_is_listed_and_the_versions_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for word in ("--list", "--version", "--help"):
        assert program.run([word]) == 0
        shown[word] = capfd.readouterr().out
    lines = [line.split()[0] for line in shown["--list"].splitlines() if line.startswith("  ")]
    assert set(VERBS) <= set(lines)
    assert len(VERBS) == 33 and sorted(VERBS) == list(VERBS)
    assert shown["--version"].startswith("trainyard 0.")
    assert shown["--help"].startswith(program.BEGIN)


def test_the_readme_says_of_every_verb_what_it_does() -> None:
    """In words: a figure has once taken the place of one."""
    table = (ROOT / "README.md").read_text().split("## The verbs")[1].split("\n\n")[1]
    rows = [line.strip("|").split(" | ", 1) for line in table.splitlines()[2:]]
    named = {verb for names, _ in rows for verb in VERBS if verb in re.findall(r"[a-z-]+", names)}
    assert named == set(VERBS), "a verb without a row"
    assert all(len(re.findall(r"[a-z]{2,}", what)) >= 2 for _, what in rows), rows


def test_it_runs_from_anywhere(tmp_path: Path) -> None:
    """What is relative is the user's; the checkout's own is found all the same."""
    (tmp_path / "mine.json").write_text("{}")
    done = command("status", "--inventory", "mine.json", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("mine.json: ")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(public_key())
    done = command("cost", "--stack", "local", cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0 and done.stdout.startswith("stack local: $0 an hour"), done.stderr


@pytest.mark.parametrize("function", ["main", "fab"])
def test_a_folder_that_has_been_removed_is_one_line(function: str, tmp_path: Path) -> None:
    code = f"import os; from fabfile import program; os.rmdir({str(tmp_path)!r}); program.{function}()"
    got = command("--list", start=[sys.executable, "-c", code], cwd=tmp_path)
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr == "the folder that you are in has been removed: go to another one\n"


def test_an_interruption_while_it_loads_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "fabric.py").write_text("raise KeyboardInterrupt")
    got = command("status", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (got.returncode, got.stdout, got.stderr) == (130, "", "interrupted\n")


def test_options_stand_before_what_is_the_programs_own() -> None:
    assert VERBS["launch"].usage == "fab launch [options] [-- COMMAND ...]"
    assert VERBS["fetch"].usage == "fab fetch JOB [options]"


def test_a_word_that_is_not_utf_8_is_one_line() -> None:
    done = command("sample", "demo-1", "--prompt", b"\xff\xfe")
    assert (done.returncode, done.stderr) == (2, "not UTF-8: b'\\xff\\xfe'\n")


@pytest.mark.parametrize("words", [["--list"], ["train", "--help"]])
def test_a_closed_stdout_ends_it_quietly(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*OWN, *words], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_or_missing_stdout_is_said() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*OWN, "--list"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "the output cannot be written: No space left on device\n")
    none = ["sh", "-c", 'exec "$@" >&-', "sh", *OWN, "--list"]
    assert subprocess.run(none, cwd=ROOT, stderr=subprocess.PIPE, timeout=60).stderr == b""


def ending(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def breaks(_c: Context) -> None:
        """Break."""
        raise error

    monkeypatch.setattr(program, "verbs", lambda: {"breaks": Verb("breaks", Task(breaks))})
    return program.run(["breaks"])


def test_an_error_that_nobody_foresaw_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINYARD_DEBUG", raising=False)
    assert ending(monkeypatch, KeyError("x")) == 1
    stderr = capfd.readouterr().err
    assert stderr.startswith("bug in trainyard at ") and "KeyError: 'x'" in stderr and len(stderr.splitlines()) == 1
    monkeypatch.setenv("TRAINYARD_DEBUG", "1")
    assert ending(monkeypatch, KeyError("x")) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_how_a_verb_ends_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert ending(monkeypatch, Exit("no", code=3)) == 3
    assert ending(monkeypatch, KeyboardInterrupt()) == 130
    assert capfd.readouterr().err == "no\ninterrupted\n"
    assert ending(monkeypatch, output.OutputClosed()) == 141
    assert capfd.readouterr().err == ""
