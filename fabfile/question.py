"""The question before something is changed or removed; `--yes` answers it."""

from __future__ import annotations

import sys

from invoke.exceptions import Exit


def must_be_answerable(yes: bool) -> None:
    """Exit 2 if the question would hang because nobody can answer it. Called before anything is done; verbs that remove
    list first what would go, so that a script's log has it, too."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise Exit("this asks before it changes anything, and there is no terminal to ask on: add --yes", code=2)


def ask(question: str) -> None:
    """Exit 1 unless the answer is yes."""
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Exit("nothing was changed", code=1)
