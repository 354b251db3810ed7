"""Errors that are shown to the user as one line, without a traceback, and what a module's main prints."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable


class UsageError(Exception):
    """The user's input is wrong, or the machine lacks something. Shown as one line; exit code 2; nothing was made."""


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with control characters escaped (`\\x1b`), so that output of a machine cannot control the terminal."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


class OperationError(Exception):
    """An operation failed. The message says what, where, and the last output. Exit code 1."""

    def __init__(self, text: object = "") -> None:
        super().__init__(visible(str(text)))  # here, as Pulumi prints it too, and it often quotes a machine's output


def say(line: str) -> None:
    """Print a line of progress: Pulumi shows what a provider prints, and so does the embedded engine."""
    print(visible(line), flush=True)


def show_error(error: Exception) -> int:
    """Print an error to stderr at the end of a module's main. Returns the exit code."""
    print(visible(str(error)), file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


def prints_json(main: Callable[[], object]) -> Callable[[], int]:
    """Make a module's main of a function: print its result as JSON, or one line for an error. Returns the exit code."""

    @functools.wraps(main)
    def run() -> int:
        try:
            print(json.dumps(main()))
        except (UsageError, OperationError, OSError) as error:
            return show_error(error)
        return 0

    return run
