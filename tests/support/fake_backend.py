"""The verbs of a stack with everything outside this process played: for tests of what they ask, keep and remove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit

from fabfile.remote import known_hosts
from fabfile.stacks import orphans, pulumi_cli, pulumi_lock


def play(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Replace functions of fabfile.stacks.pulumi_cli: Pulumi is there and knows the stack, whose cluster is not up.

    The files that SSH reads stay, Pulumi's lock is free, and a cloud's list settles at once.
    """

    def not_up(stack: str) -> str:
        """What runs on the nodes is not asked: see test_work_lost."""
        raise Exit(f"stack {stack} is not up", code=2)

    played = {"has_pulumi": lambda: True, "exists": lambda _stack: True, "stack_output": not_up, **functions}
    for name, function in played.items():
        monkeypatch.setattr(pulumi_cli, name, function)
    monkeypatch.setattr(known_hosts, "forget", lambda _stack: None)
    monkeypatch.setattr(pulumi_lock, "backend_folder", lambda: Path("/no/backend"))
    monkeypatch.setattr(pulumi_lock, "half_written", lambda _stack, _backend: {})
    monkeypatch.setattr(pulumi_lock, "must_be_readable", lambda _stack, _backend: None)
    monkeypatch.setattr(pulumi_lock, "free", lambda _stack, _backend: None)
    monkeypatch.setattr(pulumi_lock, "end_language_hosts", lambda: None)
    monkeypatch.setattr(orphans, "SETTLE_S", 0.0)
