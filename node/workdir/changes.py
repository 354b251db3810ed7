"""Lists what a program has written into its working directory, as `find -printf '%y %s %T@ %P\\0'` would list it."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from node import folders
from node.job import files
from node.workdir.assemble import record_of
from node.workdir.manifest import LINK

_SHOWN = 3  # names of links that are named
_WIDEST = 100  # characters of each
LONGEST = 1024
"""Bytes of the longest path that `fab fetch` takes; a program can nest folders beyond what any path may be."""
LEFT_OUT = "links, special files, closed folders and paths of more than 1,024 bytes are not fetched"
_COMPILED = "__pycache__"  # what Python writes beside every module that is imported

_Sent = tuple[str, int, str]  # kind, bytes and content of what was sent, see Entry


def main(argv: list[str]) -> int:
    """Print the new and changed files of a job's working directory; on stderr what cannot be fetched."""
    work = Path(argv[0])
    left: list[str] = []
    try:
        for name, size, modified in changed(work, left):
            record = (size, int(modified), os.fsencode(f"{work.name}/{name}"))
            sys.stdout.buffer.write(b"f %d %d %s\0" % record)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    if left:
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        shown = ", ".join(_shortened(name) for name in left[:_SHOWN])
        print(f"{LEFT_OUT}: {shown}{more}", file=sys.stderr)
    return 0


def _shortened(name: str) -> str:
    return repr(name) if len(name) <= _WIDEST else f"{name[:_WIDEST]!r}..."


def changed(work: Path, left: list[str]) -> Iterator[tuple[str, int, float]]:
    """Yield name, bytes and time of each file that is new or has another content than the one that was sent. The names
    of what is left out go into `left`."""
    record = files.read(record_of(work))
    sent = {path: (kind, size, content) for path, kind, size, content in record.get("files", ())}
    stamp = record.get("stamp", 0)
    errors: list[OSError] = []
    for visit in folders.walk(work, errors):
        if visit.is_over:
            continue
        ahead = {name: visit.path_of(name) for name in visit.folder.ahead if name != _COMPILED}
        visit.folder.ahead[:] = [name for name, path in ahead.items() if not _is_too_long(work, path)]
        left += [path for path in ahead.values() if _is_too_long(work, path)]

        for name in visit.others:
            path = visit.path_of(name)
            with suppress(FileNotFoundError):  # the program has just removed it
                state = os.stat(name, dir_fd=visit.handle, follow_symlinks=False)
                if stat.S_ISREG(state.st_mode) and not _is_too_long(work, path):
                    if not _is_same(visit, name, state, sent.get(path), stamp):
                        yield path, state.st_size, state.st_mtime
                elif not _is_sent_link(visit, name, state, sent.get(path)):
                    left.append(path)
    left += [error.filename for error in errors]


def _is_same(visit: folders.Visit, name: str, state: os.stat_result, sent: _Sent | None, stamp: int) -> bool:
    """Whether a file has the content that was sent; `stamp` is the time in ns that each copy has at first."""
    if sent is None or state.st_size != sent[1]:
        return False
    if state.st_mtime_ns == stamp:
        return True
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=visit.handle)
    with os.fdopen(handle, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sent[2]


def _is_sent_link(visit: folders.Visit, name: str, state: os.stat_result, sent: _Sent | None) -> bool:
    """Whether this is a link that was sent, as it was."""
    if sent is None or sent[0] != LINK or not stat.S_ISLNK(state.st_mode):
        return False
    return os.readlink(name, dir_fd=visit.handle) == sent[2]


def _is_too_long(work: Path, path: str) -> bool:
    return len(os.fsencode(f"{work.name}/{path}")) > LONGEST
