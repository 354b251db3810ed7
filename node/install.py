"""Installs the training package on a node, in a folder named by its content hash so that no version is sent twice.

A folder of that name counts as the package only if its files are those that were sent: any job can write there. One
that differs is put aside, not removed, as jobs may run from it, and made anew.

Talks over its stdin and stdout, in lines of JSON:

    in   {"hash": ..., "tree": hash of the folder's files (node/held_files.py), "size": bytes of the wheel,
          "job": text or "", "ranks": n, "wandb": bool, "code": folder or ""}
    out  {"have": bool}
    in   the wheel, unless "have"
    out  {"folder": path, "busy": id of the job that the node runs or "", "problem": why it cannot run this one or ""}

The folder also gets a copy of this program, `launch`, with which jobs that use the folder run.
"""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from fabfile.launchers import VENV
from node import FOLDER, folders, held_files
from node.job import cleanup

CODE = Path.home() / ".cache" / "trainyard" / "code"
OLD = 14 * 86400
"""Seconds since its last use after which a version may be removed."""
_ASIDE = ".old-"
_TRIES = 3


def main(_argv: list[str]) -> None:
    """Install the package if it is missing, then check the job against this node's data."""
    asked: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    code = Path(asked["code"] or CODE)
    code.mkdir(parents=True, exist_ok=True)
    owner = held_files.owner_in(code)
    folder = place(code, asked["hash"], owner)
    have = is_held(folder, asked["tree"], owner)
    print(json.dumps({"have": have}), flush=True)
    if have:
        os.utime(folder)  # so that forget_old keeps it
        if asked["job"]:  # the trainer runs from it
            held_files.compile_anew(folder)
    else:
        # Of the program that runs, which is what was hashed: the file of its name may be another by now.
        unpack(folder, sys.stdin.buffer.read(asked["size"]), FOLDER.parent.read_bytes(), asked["tree"], owner)
        if code == CODE:  # one that nodes share is used by jobs that this node does not see
            forget_old(folder)
    problem = check(folder, asked["job"], asked["ranks"], asked["wandb"]) if asked["job"] else ""
    busy = next(iter(cleanup.busy_with("")), "")
    print(json.dumps({"folder": str(folder), "busy": busy, "problem": problem}), flush=True)


def place(code: Path, name: str, owner: int) -> Path:
    """Return the version's folder; with the owner's number in its name if another user has taken the first one."""
    folder = code / name
    if os.path.lexists(folder) and folder.lstat().st_uid != owner:
        return code / f"{name}-{owner}"
    return folder


def is_held(folder: Path, tree: str, owner: int) -> bool:
    """Whether the folder has what was unpacked into it, and nothing else but bytecode."""
    try:
        return held_files.digest_of(folder, owner) == tree
    except (held_files.NotHeld, OSError):
        return False


def unpack(folder: Path, wheel: bytes, program: bytes, tree: str, owner: int) -> None:
    """Unpack the wheel and write the program into a temporary folder, then rename it, so that `folder` is never partly
    there. Whatever else has its name is put aside."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        zipfile.ZipFile(io.BytesIO(wheel)).extractall(temporary)
        (temporary / "launch").write_bytes(program)
        temporary.chmod(held_files.FOLDER_MODE)
        for path in temporary.rglob("*"):
            path.chmod(held_files.FOLDER_MODE if path.is_dir() else held_files.FILE_MODE)
        held_files.compile_anew(temporary)  # once here, not by every rank at the start of a job
        _rename(temporary, folder, tree, owner)
    finally:
        with suppress(OSError):  # it goes with what is old
            folders.remove(temporary)


def _rename(temporary: Path, folder: Path, tree: str, owner: int) -> None:
    for number in range(_TRIES):
        if is_held(folder, tree, owner):  # another install has been faster
            return
        if os.path.lexists(folder):
            # Within its parent: to move a folder elsewhere takes the right to write into it.
            folder.rename(folder.with_name(f"{_ASIDE}{folder.name}-{os.getpid()}-{number}-{time.time_ns()}"))
        try:
            temporary.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
    raise SystemExit(f"{folder}: something makes it again and again")


def forget_old(current: Path) -> None:
    """Remove the folders of versions unused for OLD seconds, unless a job still runs from them."""
    for other in CODE.iterdir():
        if other != current and time.time() - other.lstat().st_mtime > OLD and not is_in_use(other):
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
