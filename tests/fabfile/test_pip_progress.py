"""The Makefile's `pip install` shows that it is alive, and fails as pip does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fabfile.pip_progress import PipProgress

SCRIPT = Path(__file__).resolve().parents[2] / "fabfile" / "pip_progress.py"
SAYS = """\
Collecting torch==2.13.0 (from trainyard==0.1)
  Downloading torch-2.13.0-cp311-none-manylinux_2_28_x86_64.whl (104.5 MB)
Collecting rich
  Using cached rich-15.0.0-py3-none-any.whl (310 kB)
Installing collected packages: rich, torch
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment whose Python is a program that prints what pip would, takes $SLEEP seconds and ends with $CODE."""
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "pip-23.0.1.dist-info").mkdir(parents=True)
    (tmp_path / "says").write_text(SAYS)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f"""#!/bin/sh
        echo "$*" >{tmp_path}/argv
        cat {tmp_path}/says
        mkdir -p {packages}/rich-15.0.0.dist-info
        sleep $SLEEP
        echo 'ERROR: of this kind'
        exit $CODE
        """
    )
    python.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("code", [0, 3])
def test_a_pipe_gets_lines_and_pips_exit_code(code: int, venv: Path) -> None:
    argv = [sys.executable, "-I", str(SCRIPT), str(venv), "--editable", ".[dev]"]
    environment = os.environ | {"CODE": str(code), "SLEEP": "0"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code
    assert (venv / "argv").read_text().split()[-2:] == ["--editable", ".[dev]"]
    assert done.stdout.startswith("Python packages installed in ") == (code == 0)
    assert done.stderr.endswith("ERROR: of this kind\npip install failed with exit code 3\n") == (code != 0)


def test_a_terminal_has_one_line_that_changes(venv: Path) -> None:
    ours, theirs = os.openpty()
    environment = os.environ | {"CODE": "0", "SLEEP": "1.5", "TERM": "xterm", "COLUMNS": "60"}
    with subprocess.Popen([sys.executable, str(SCRIPT), str(venv)], stdout=theirs, env=environment) as process:
        os.close(theirs)
        process.wait(timeout=30)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "\r\x1b[K1 s: installing, 1 of 2 packages are there" in shown
    assert "\n" not in shown.partition("Python packages installed")[0]


def test_downloads_are_counted(tmp_path: Path) -> None:
    progress = PipProgress(tmp_path)
    for line in SAYS.splitlines()[:3]:
        progress.read(line)
    assert progress.text(12) == "12 s: 2 packages, 104 MB downloaded; looking at rich"
