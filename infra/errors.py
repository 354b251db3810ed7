"""The one error that a person reads: what was wrong, where, and what is allowed, in one line."""


class UsageError(Exception):
    """Something the user wrote or the machine lacks. Shown as one line; exit code 2; nothing was created."""
