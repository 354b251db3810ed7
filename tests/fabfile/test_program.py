"""The command itself: what is read, what is refused before anything runs, and how a verb ends."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task
from sample_inputs import public_key

from fabfile import output, program
from fabfile.command_line import SHORT, AtLeast, UsageError, Verb

ROOT = Path(__file__).resolve().parents[2]
OWN = [sys.executable, "-m", "fabfile"]
FABRICS = [sys.executable, "-m", "fabric"]
"""Fabric's own `fab`, which finds the collection in the checkout."""
VERBS = program.verbs()
NAMES = [("run", "names"), ("bootstrap", "names")]


def command(
    *words: str | bytes, start: Sequence[str] = OWN, cwd: Path = ROOT, **env: str
) -> subprocess.CompletedProcess[str]:
    """The command, in an environment with no stack, no home and nothing of a cloud in it."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [*start, *words], cwd=cwd, env=bare, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


@task(help={"job": "its id", "dry-run": "only say it"})
def toy(
    _c: Context,
    job: str,
    set_: Sequence[str] | None = None,
    tokens: Annotated[int, AtLeast(1)] = 100,
    rate: float = 0.5,
    nodes: Annotated[int, AtLeast(1)] | None = None,
    dry_run: bool = False,
    from_: str = "",
) -> None:
    """Do something: 100 % of it."""


@task(positional=["id", "id2"])
def pair(_c: Context, id: str, id2: str = "", out: str = "") -> None:
    """Compare."""


TOY, PAIR = Verb("toy", toy), Verb("pair", pair)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("j.toml", {"job": "j.toml", "set_": []}),
        ("j train.steps=3 --nodes 2", {"job": "j", "set_": ["train.steps=3"], "nodes": 2}),
        (
            "--tokens=7 j --set train.lr=1 data.path=/a",
            {"job": "j", "set_": ["train.lr=1", "data.path=/a"], "tokens": 7},
        ),
        ("-n2 j --dry-run", {"job": "j", "set_": [], "nodes": 2, "dry_run": True}),
        ("j --rate -1.5 --from=-x", {"job": "j", "set_": [], "rate": -1.5, "from_": "-x"}),
        ("train.steps=3 j", {"job": "j", "set_": ["train.steps=3"]}),
        ("-- -j", {"job": "-j", "set_": []}),
    ],
)
def test_words_become_arguments(words: str, given: dict[str, Any]) -> None:
    assert TOY.read(words.split()) == given


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("a", {"id": "a"}),
        ("a b", {"id": "a", "id2": "b"}),
        ("a --out x b", {"id": "a", "id2": "b", "out": "x"}),
        ("-ox a b", {"id": "a", "id2": "b", "out": "x"}),
    ],
)
def test_an_argument_may_be_left_out(words: str, given: dict[str, Any]) -> None:
    assert PAIR.read(words.split()) == given


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "JOB is missing: fab toy JOB [section.key=value ...] [options]"),
        ("train.steps=3", "JOB is missing"),
        ("j --tokens abc", "--tokens: must be a whole number of at least 1, not 'abc'"),
        ("j --tokens 0", "--tokens: must be a whole number of at least 1, not '0'"),
        ("j -n 0", "--nodes: must be a whole number of at least 1, not '0'"),
        ("j --nodes x", "--nodes: must be a whole number of at least 1, not 'x'"),
        ("j --rate nan", "--rate: must be a number, not 'nan'"),
        ("j --tokens", "--tokens: needs a value"),
        ("j --from --dry-run", "--from: needs a value"),
        ("j --token 3", "there is no option --token; did you mean --tokens?"),
        ("j -R", "there is no option -R"),
        ("j --dry-run=yes", "--dry-run: ignored explicit argument 'yes'"),
        ("j k", "'k' is not section.key=value"),
        ("j pair", "one verb at a time: fab toy ... && fab pair"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_line(words: str, line: str) -> None:
    with pytest.raises(UsageError) as error:
        TOY.read(words.split(), ["toy", "pair"])
    assert error.value.code == 2
    assert str(error.value.message).startswith(f"fab toy: {line}") and "\n" not in str(error.value.message)


def test_one_argument_too_many() -> None:
    with pytest.raises(UsageError, match="one argument too many: 'c'"):
        PAIR.read(["a", "b", "c"])


def test_the_help_of_a_verb_has_every_option() -> None:
    text = TOY.help()
    for part in (
        "usage: fab toy JOB [section.key=value ...] [options]",
        "100 % of it",
        "--nodes N",
        "only say it",
    ):
        assert part in text
    assert "(default: 100)" in text and "-h, --help" in text


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_reads_and_shows_its_options(name: str) -> None:
    verb = VERBS[name]
    assert verb.summary and f"usage: fab {name}" in verb.help()
    for parameter in verb.parameters:
        assert parameter.help, f"fab {name} {parameter.flag} has no help"


@pytest.mark.parametrize(("verb", "said"), [("up", "how many"), ("train", "how many"), *NAMES])
def test_the_help_says_whether_nodes_are_counted_or_named(verb: str, said: str) -> None:
    (nodes,) = [parameter for parameter in VERBS[verb].parameters if parameter.name == "nodes"]
    assert nodes.help.startswith(said)
    assert (nodes.kind is int) == (said == "how many")


def test_every_verb_that_takes_nodes_is_in_the_list_above() -> None:
    assert {verb.name for verb in VERBS.values() if verb.takes("nodes")} == {"up", "train", "run", "bootstrap"}


def test_a_short_flag_is_the_same_option_with_every_verb() -> None:
    for verb in VERBS.values():
        for flag, parameter in verb.options.items():
            if not flag.startswith("--"):
                assert SHORT[parameter.name.strip("_")] == flag, f"fab {verb.name} {flag}"
    assert len(set(SHORT.values())) == len(SHORT)
    assert "-h" not in SHORT.values()


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
@pytest.mark.parametrize("name", ["run", "destroy"])
def test_help_is_help_for_both_commands(name: str, start: list[str]) -> None:
    done = command(name, "--help", start=start)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"usage: fab {name}")


@pytest.mark.parametrize("start", [OWN, FABRICS], ids=["own", "fabric's"])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-R destroy --yes", "fab: -R is an option of Fabric's that no verb here honours"),
        ("--dry destroy --yes", "fab: --dry is an option of Fabric's"),
        ("-H host up --yes", "fab: -H is an option of Fabric's"),
        ("-e up --yes", "fab: -e is an option of Fabric's"),
        ("-S file up --yes", "fab: -S is an option of Fabric's"),
        ("destroy --yes -R", "fab destroy: there is no option -R"),
        ("--stack x up", "fab: --stack stands after a verb"),
        ("up wait", "fab up: one verb at a time: fab up ... && fab wait"),
        ("destory", "fab: there is no verb 'destory'; did you mean destroy?"),
        ("status --stak x", "fab status: there is no option --stak; did you mean --stack?"),
        ("run", "fab run: COMMAND is missing"),
    ],
)
def test_what_no_verb_honours_is_refused_before_anything_runs(words: str, line: str, start: list[str]) -> None:
    done = command(*words.split(), start=start)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith(line) and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("flag", ["-T abc", "-H", "--prompt-for-login-password", "--list-agent-keys", "-c x"])
def test_fabrics_flags_are_refused_before_fabric_reads_them(flag: str) -> None:
    done = command(*flag.split(), "up")
    assert done.returncode == 2 and "option of Fabric's" in done.stderr


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


def test_bare_fab_says_where_to_begin() -> None:
    for start in (OWN, FABRICS):
        said = command(start=start).stdout
        verbs = [line.split()[1] for line in said.splitlines() if line.startswith("    fab ")]
        assert verbs == ["up", "wait", "check", "prepare", "train", "logs", "destroy"]
        assert "fab --list" in said and "-R" not in said


def test_every_verb_is_listed_and_the_versions_are_told() -> None:
    lines = [line.split()[0] for line in command("--list").stdout.splitlines() if line.startswith("  ")]
    assert set(VERBS) <= set(lines)
    assert len(VERBS) == 27 and sorted(VERBS) == list(VERBS)
    assert command("--version").stdout.startswith("trainyard 0.")
    assert command("--help").stdout.startswith(program.BEGIN)


def test_it_runs_from_anywhere(tmp_path: Path) -> None:
    """What is relative is the user's; the checkout's own is found all the same."""
    (tmp_path / "mine.json").write_text("{}")
    done = command("status", "--inventory", "mine.json", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("mine.json: ")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(public_key())
    done = command("cost", "--stack", "local", cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0 and done.stdout.startswith("stack local: $0 an hour"), done.stderr


def test_a_word_that_is_not_utf_8_is_one_line() -> None:
    done = command("sample", "demo-1", "--prompt", b"\xff\xfe")
    assert (done.returncode, done.stderr) == (2, "not UTF-8: b'\\xff\\xfe'\n")


@pytest.mark.parametrize("words", [["--list"], ["train", "--help"], []])
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
    @task
    def breaks(_c: Context) -> None:
        """Break."""
        raise error

    monkeypatch.setattr(program, "verbs", lambda: {"breaks": Verb("breaks", breaks)})
    return program.run(["breaks"])


def test_an_error_that_nobody_foresaw_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINYARD_DEBUG", raising=False)
    assert ending(monkeypatch, KeyError("x")) == 1
    said = capfd.readouterr().err
    assert said.startswith("bug in trainyard at ") and "KeyError: 'x'" in said and len(said.splitlines()) == 1
    monkeypatch.setenv("TRAINYARD_DEBUG", "1")
    assert ending(monkeypatch, KeyError("x")) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_how_a_verb_ends_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert ending(monkeypatch, Exit("no", code=3)) == 3
    assert ending(monkeypatch, KeyboardInterrupt()) == 130
    assert capfd.readouterr().err == "no\ninterrupted\n"
    assert ending(monkeypatch, output.OutputClosed()) == 141
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fab wait", "fab wait --stack lab"),
        ("fab up, or fab destroy", "fab up --stack lab, or fab destroy --stack lab"),
        ("fab logs x -f   (stop: fab stop x)", "fab logs --stack lab x -f   (stop: fab stop --stack lab x)"),
        ("fab images", "fab images"),
        ("fab cost --stack other, then fab up", "fab cost --stack other, then fab up --stack lab"),
    ],
)
def test_a_hint_stays_with_the_stack_of_the_command(text: str, expected: str) -> None:
    output.remember_target(" --stack lab", [verb.name for verb in VERBS.values() if verb.takes("stack")])
    try:
        assert output.hint(text) == output.hint(output.hint(text)) == expected
    finally:
        output.remember_target("", [])
    assert output.hint(text) == text


@pytest.mark.parametrize(
    ("env", "colours"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
    ],
)
def test_colours_are_for_terminals_that_have_them(
    env: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    _, terminal = os.openpty()
    with os.fdopen(terminal, "w") as file:
        assert output.colour("x", "red", file=file) == ("\033[31mx\033[0m" if colours else "x")


def bare_hints(source: str) -> list[str]:
    """Texts printed by `say` that name a verb of ours, but were not given to `hint` or `next_command`."""
    found: list[str] = []

    def look(node: ast.AST) -> None:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "hint",
            "next_command",
        ):
            return
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            found.extend([text] if names_a_verb(text) else [])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and names_a_verb(node.value):
            found.append(node.value)
        for child in ast.iter_child_nodes(node) if not isinstance(node, ast.JoinedStr) else ():
            look(child)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "say":
            for argument in node.args:
                look(argument)
    return found


def names_a_verb(text: str) -> bool:
    found = re.findall(r"\bfab ([a-z][a-z-]*)(?![^\n,;()]*--(?:stack|inventory))", text)
    return any(word in VERBS and VERBS[word].takes("stack") for word in found)


def test_every_hint_keeps_the_cluster_of_the_command() -> None:
    """An error's line gets it in program.py; what is printed with `say` must ask for it."""
    assert bare_hints('say("next: fab wait")') and bare_hints('say(f"{x}: fab logs {y}", file=z)')
    assert not bare_hints('say(hint("next: fab wait"))')
    elsewhere = {"demo.py"}  # its cluster is gone by then
    for path in sorted((ROOT / "fabfile").rglob("*.py")):
        if path.name not in elsewhere:
            assert bare_hints(path.read_text()) == [], path
