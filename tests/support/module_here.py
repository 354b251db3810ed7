"""Modules of infra/ that a verb starts, run in the test's own process: a process of their own is mostly imports."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Sequence
from unittest import mock

from invoke.exceptions import Exit

from fabfile.stacks import pulumi_cli


def ask(argv: Sequence[str], *, stdin: str = "", **more: str) -> str:
    """Do what `pulumi_cli.ask` does with the command line of a module of infra/; returns its output.

    Raises Exit with the module's code and message if it fails.
    """
    assert list(argv[:2]) == [sys.executable, "-m"], f"no module: {argv}"
    assert not stdin and not more, "what a module reads from stdin or its environment is for a process"
    module = importlib.import_module(argv[2])
    out = io.StringIO()
    err = io.StringIO()
    with (
        mock.patch.object(sys, "argv", list(argv[2:])),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = module.main()
    if code:
        raise Exit(err.getvalue().strip(), code=pulumi_cli.USAGE if code == pulumi_cli.USAGE else 1)
    return out.getvalue()
