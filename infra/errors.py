"""What goes wrong in a way that a person is told about in plain words, without a traceback."""

from __future__ import annotations

import sys


class UsageError(Exception):
    """Something the user wrote or the machine lacks. Shown as one line; exit code 2; nothing was created."""


class OperationError(Exception):
    """An operation on real things that failed: says what, where, and what was said last. Exit code 1."""


def told(error: Exception) -> int:
    """Say an error on stderr, as the end of a module's main; its exit code."""
    print(error, file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1
