"""Installs the training package on a node, in a folder named by its content hash so that no version is sent twice.

Talks over its stdin and stdout, in lines of JSON:

    in   {"hash": ..., "size": bytes of the wheel, "job": text or "", "ranks": n, "wandb": bool, "code": folder or ""}
    out  {"have": bool}
    in   the wheel, unless "have"
    out  {"folder": path, "busy": id of the job that the node runs or "", "problem": why it cannot run this one or ""}

The folder also gets a copy of this program, `launch`, with which jobs that use the folder run.
"""

from __future__ import annotations

import compileall
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from fabfile.launchers import VENV
from node import folders
from node.job import cleanup

CODE = Path.home() / ".cache" / "trainyard" / "code"
OLD = 14 * 86400
"""Seconds since its last use after which a version may be removed."""


def main(_argv: list[str]) -> None:
    """Install the package if it is missing, then check the job against this node's data."""
    asked: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    code = Path(asked["code"] or CODE)
    folder = code / asked["hash"]
    have = folder.is_dir()
    print(json.dumps({"have": have}), flush=True)
    if have:
        os.utime(folder)  # so that forget_old keeps it
    else:
        unpack(folder, sys.stdin.buffer.read(asked["size"]), Path(sys.argv[0]))
        if code == CODE:  # one that nodes share is used by jobs that this node does not see
            forget_old(folder)
    problem = check(folder, asked["job"], asked["ranks"], asked["wandb"]) if asked["job"] else ""
    busy = next(iter(cleanup.busy_with("")), "")
    print(json.dumps({"folder": str(folder), "busy": busy, "problem": problem}), flush=True)


def unpack(folder: Path, wheel: bytes, program: Path) -> None:
    """Unpack the wheel and copy the program into a temporary folder, then rename it, so that `folder` is never partly
    there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        zipfile.ZipFile(io.BytesIO(wheel)).extractall(temporary)
        shutil.copy(program, temporary / "launch")
        compileall.compile_dir(temporary, quiet=2)  # once here, not by every rank at the start of a job
        temporary.chmod(0o755)
        if not folder.is_dir():  # another install may have been faster
            temporary.rename(folder)
    finally:
        with suppress(OSError):  # it goes with what is old
            folders.remove(temporary)


def forget_old(current: Path) -> None:
    """Remove the folders of versions unused for OLD seconds, unless a job still runs from them."""
    for other in CODE.iterdir():
        if other != current and time.time() - other.stat().st_mtime > OLD and not is_in_use(other):
            with suppress(OSError):  # what stays is tried again by the next install
                folders.remove(other)


def is_in_use(folder: Path) -> bool:
    """Whether the command line of a process (supervisor, keeper, rank) names `launch` in this folder."""
    mark = os.fsencode(folder / "launch")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended
            if mark in path.read_bytes().split(b"\0"):
                return True
    return False


def check(folder: Path, job: str, ranks: int, wandb: bool) -> str:
    """Let the trainer check the job against this node's data; returns its error message, empty if there is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(job)
        file.flush()
        argv = [f"{VENV}/python", "-m", "training.job", "check", file.name, "--ranks", str(ranks)]
        argv += ["--wandb"] if wandb else []
        # A job's relative paths start at the home directory, on every node.
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        done = subprocess.run(argv, cwd=Path.home(), env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip() or "the job cannot be checked").splitlines()[-1]
