"""Says whether a folder on a node still has the content that was unpacked into it.

Every job of the same user may write to it, so that its name and its presence say nothing. Python's bytecode is left
out: what is compiled on the node has no hash that is known beforehand, so it is compiled anew before it is used.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

FILE_MODE = 0o644
FOLDER_MODE = 0o755
BYTECODE = "__pycache__"
_MOST_ENTRIES = 10_000  # from which on a folder is not one of ours, and is not read to its end
_LONGEST = 16 << 20  # bytes of a file, likewise


class NotHeld(Exception):
    """The folder has something else than what was unpacked: one line."""


def digest(hashes: Mapping[str, str]) -> str:
    """Return the SHA-256 of a folder's content.

    Args:
        hashes: the SHA-256 of each file, by its path below the folder
    """
    return hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()


def owner_in(folder: Path) -> int:
    """Return the user ID that owns what this process makes in a folder. On a network file system it may be another than
    the process has."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as made:
        return Path(made).stat().st_uid


def digest_of(folder: Path, owner: int) -> str:
    """Return `digest` of what a folder has, without bytecode.

    Args:
        folder: read to its end, without links
        owner: the user ID that everything in it must have

    Raises:
        NotHeld: a link, a special file, another owner or mode, or a folder without files
        OSError: something cannot be read
    """
    hashes: dict[str, str] = {}
    folders = [folder]
    empty = {folder}
    entries = 0
    _check_folder(folder, owner)
    while folders:
        current = folders.pop()
        for entry in os.scandir(current):
            entries += 1
            if entries > _MOST_ENTRIES:
                raise NotHeld(f"{folder}: has more than {_MOST_ENTRIES} files")

            path = current / entry.name
            if entry.is_dir(follow_symlinks=False):
                _check_folder(path, owner)
                if entry.name == BYTECODE:
                    _check_bytecode(path)
                else:
                    folders.append(path)
                    empty.add(path)
                continue

            hashes[str(path.relative_to(folder))] = _hash(path, owner)
            for parent in path.parents:
                empty.discard(parent)
    if empty:
        raise NotHeld(f"{min(empty)}: has no files")
    return digest(hashes)


def compile_anew(folder: Path) -> None:
    """Compile all Python files of a folder, in place of the bytecode that is there.

    The old bytecode goes first: where the new one cannot be written, each process compiles for itself. Another process
    may do the same meanwhile, so what it is about to rename is left alone, and what has gone is no error.
    """
    for cache in folder.rglob(BYTECODE):
        for path in cache.glob("*.pyc"):
            path.unlink(missing_ok=True)
    compileall.compile_dir(folder, quiet=2)


def _check_folder(path: Path, owner: int) -> None:
    status = path.lstat()
    is_ours = status.st_uid == owner and stat.S_IMODE(status.st_mode) & 0o777 == FOLDER_MODE
    if not (stat.S_ISDIR(status.st_mode) and is_ours):
        raise NotHeld(f"{path}: is no folder of mode {FOLDER_MODE:o} of user {owner}")


def _check_bytecode(path: Path) -> None:
    for number, entry in enumerate(os.scandir(path)):
        if number > _MOST_ENTRIES or not entry.is_file(follow_symlinks=False):
            raise NotHeld(f"{path}/{entry.name}: is no bytecode")


def _hash(path: Path, owner: int) -> str:
    # A file may become a link or a pipe at any moment, so what is checked is what is open.
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(number, "rb") as file:  # noqa: PTH123 - it is open
        status = os.fstat(number)
        is_ours = status.st_uid == owner and stat.S_IMODE(status.st_mode) == FILE_MODE
        if not (stat.S_ISREG(status.st_mode) and is_ours and status.st_size < _LONGEST):
            raise NotHeld(f"{path}: is no file of mode {FILE_MODE:o} of user {owner}")
        return hashlib.sha256(file.read(_LONGEST)).hexdigest()
