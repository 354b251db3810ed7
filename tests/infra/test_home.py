"""A user's HOME that cannot be made: one line that says what to do, exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from infra.errors import UsageError
from infra.state import stack_record

HOMES = ["/proc/no-home", "/dev/null/home"]
"""Nobody can make these, root neither."""


@pytest.mark.parametrize("home", HOMES)
def test_the_engine_says_which_folder_and_what_to_do(home: str) -> None:
    argv = [sys.executable, "-m", "infra.state.engine", "output", "local"]
    done = subprocess.run(argv, env={**os.environ, "HOME": home}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"{home}/.trainyard/engine/local: cannot be made (")
    assert "set HOME to a directory that you can write to" in done.stderr


@pytest.mark.parametrize("home", HOMES)
def test_the_record_of_a_stack_says_it_as_well(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    with pytest.raises(UsageError, match=f"^{home}/.trainyard/ids/yard: cannot be made .*set HOME to"):
        stack_record.reserve("yard")
