"""A command line of `fab`, run in the test's own process."""

from __future__ import annotations

from fabfile import program


def fab(*words: str) -> int:
    """Run it; returns the exit code."""
    return program.run(words)
