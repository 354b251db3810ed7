"""Hints keep the command's cluster, and colours are for terminals."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from fabfile import output, program

ROOT = Path(__file__).resolve().parents[2]


VERBS = program.verbs()


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
    output.remember_target(" --stack lab", lambda verb: VERBS[verb].takes("stack"))
    try:
        assert output.hint(text) == output.hint(output.hint(text)) == expected
    finally:
        output.remember_target("", bool)
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
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
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
