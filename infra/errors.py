"""Errors that are shown to the user as plain lines, without a traceback."""

from __future__ import annotations

import re
import sys


class UsageError(Exception):
    """Something the user wrote or the machine lacks. Shown as one line; exit code 2; nothing was created."""


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with control characters shown (`\\x1b`), so that a terminal does not obey what a machine has said."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


class OperationError(Exception):
    """An operation on real things that failed: says what, where, and what was said last. Exit code 1."""

    def __init__(self, text: object = "") -> None:
        super().__init__(visible(str(text)))  # also where Pulumi shows it: it often has a machine's own words


def show_error(error: Exception) -> int:
    """Print an error on stderr at the end of a module's main; returns the exit code."""
    print(visible(str(error)), file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1
