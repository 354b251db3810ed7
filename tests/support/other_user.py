"""Commands of this machine as a user who is not root, and a Python that this user can start."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

NOBODY = 65534
# setpriv starts its command with root's rights still in force, so it finds one in a closed folder.
# `env` starts it anew, with the rights of the user.
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env")

DISTRIBUTION_PYTHON = Path("/usr/bin/python3")
_ANSWER_S = 60


def python(folder: Path) -> Path:
    """Return the Python of the tests if the other user can start it: one of pyenv lies in the home of
    root, which is closed. Otherwise the distribution's, in a virtual environment that this makes in
    `folder`. Skips if neither is of use."""
    own = Path(sys.executable)
    if _runs_fab(own):
        return own

    other = _environment_with_own_packages(folder)
    if _runs_fab(other):
        return other

    name = pwd.getpwuid(NOBODY).pw_name
    pytest.skip(f"{name} can run {ROOT} neither with {os.path.realpath(own)} nor with {DISTRIBUTION_PYTHON}")


def _environment_with_own_packages(folder: Path) -> Path:
    """Make a virtual environment with the packages of the tests. Another version of Python cannot load
    those with compiled parts."""
    own_packages = Path(sysconfig.get_path("purelib"))
    packages = folder / "lib" / own_packages.parent.name / "site-packages"
    packages.mkdir(parents=True)
    (packages / "tests.pth").write_text(f"{own_packages}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {DISTRIBUTION_PYTHON.parent}\n")

    program = folder / "bin" / "python"
    program.parent.mkdir()
    program.symlink_to(DISTRIBUTION_PYTHON)
    return program


def _runs_fab(program: Path) -> bool:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [*AS_NOBODY, str(program), "-c", "import fabfile.verbs, infra.state.engine"]
    done = subprocess.run(argv, env=environment, stderr=subprocess.DEVNULL, timeout=_ANSWER_S, check=False)
    return done.returncode == 0
