"""What goes wrong in a way that a person is told about in plain words, without a traceback."""

from __future__ import annotations


class UsageError(Exception):
    """Something the user wrote or the machine lacks. Shown as one line; exit code 2; nothing was created."""


class OperationError(Exception):
    """An operation on real things that failed: says what, where, and what was said last. Exit code 1."""
