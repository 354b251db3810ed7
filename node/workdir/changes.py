"""Lists what a program has written into its working directory, as `find -printf '%y %s %T@ %P\\0'` would list it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from node.job import files
from node.workdir.assemble import record_of
from node.workdir.manifest import LINK

_SHOWN = 3  # names of links that are named
LEFT_OUT = "links and special files are not fetched"
_COMPILED = "__pycache__"  # what Python writes beside every module that is imported


def main(argv: list[str]) -> int:
    """Print the new and changed files of a job's working directory; on stderr what cannot be fetched."""
    work = Path(argv[0])
    left: list[str] = []
    for name, size, modified in changed(work, left):
        sys.stdout.buffer.write(b"f %d %d %s\0" % (size, int(modified), os.fsencode(f"{work.name}/{name}")))
    if left:
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        shown = ", ".join(repr(name) for name in left[:_SHOWN])
        print(f"{LEFT_OUT}: {shown}{more}", file=sys.stderr)
    return 0


def changed(work: Path, left: list[str]) -> Iterator[tuple[str, int, float]]:
    """Yield name, bytes and time of each file that is new or has another content than the one that was sent. The names
    of new links and special files go into `left`."""
    record = files.read(record_of(work))
    sent = {path: (kind, size, content) for path, kind, size, content in record.get("files", ())}
    stamp = record.get("stamp", 0)
    for folder, folders, names in os.walk(work):
        folders[:] = sorted(name for name in folders if name != _COMPILED)
        for name in sorted([*names, *(one for one in folders if (Path(folder) / one).is_symlink())]):
            path = Path(folder) / name
            short = str(path.relative_to(work))
            kind, size, content = sent.get(short, ("", -1, ""))
            if path.is_symlink() or not path.is_file():
                if kind != LINK or not path.is_symlink() or os.readlink(path) != content:  # noqa: PTH115 - Path tidies it
                    left.append(short)
                continue
            state = path.stat()
            is_same = state.st_size == size and (state.st_mtime_ns == stamp or _hash(path) == content)
            if not is_same:
                yield short, state.st_size, state.st_mtime


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
