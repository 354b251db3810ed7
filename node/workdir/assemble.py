"""Makes the working directory of a job: a fresh copy of a state that was sent, which the program may change."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from node import folders
from node.job import files
from node.workdir.manifest import LINK, PROGRAM, Entry
from node.workdir.store import DEFAULT, Damaged, Store

_THREADS = 4  # hashing and copying wait for memory and the disk, and do not hold Python's lock
_CHUNK = 1 << 20


class WorkdirError(Exception):
    """The working directory cannot be made: one line, without the node's name."""


def assemble(snapshot: str, into: Path, store: Path = DEFAULT) -> None:
    """Copy a state of a working directory, by its hash (empty: an empty directory), from the store to `into`; each file
    is checked against its hash. A directory that is there already stays as it is: a job that starts again finds its
    work as it was left. Beside it is `into`.json, with which `changed` tells what the program has changed. It is there
    whole or not at all. WorkdirError."""
    if into.is_dir():
        return
    # Named by the node: where nodes share the folder, two may make one at the same time, and the first one stays.
    temporary = into.with_name(f".{into.name}-{socket.gethostname()}")
    try:
        folders.remove(temporary)  # of a process that was killed
        temporary.mkdir(parents=True)
        entries = Store(store).entries(snapshot) if snapshot else ()
        stamp = time.time_ns()
        _copy_all(Store(store), entries, temporary, stamp)
        rows = [[one.path, one.kind, one.size, one.content] for one in entries]
        files.write(record_of(into), {"snapshot": snapshot, "stamp": stamp, "files": rows})
        _put(temporary, into)
    except FileNotFoundError as error:
        missing = f"{snapshot[:12]} is not complete in {store} any more ({Path(error.filename or '').name})"
        raise WorkdirError(f"working directory: {missing}: launch it again, which sends it") from None
    except Damaged as error:
        raise WorkdirError(f"working directory: {error}: launch it again, which sends it anew") from None
    except OSError as error:
        raise WorkdirError(f"working directory: {into}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):  # the error that has ended it counts, and the next one removes it first
            folders.remove(temporary)


def record_of(work: Path) -> Path:
    """Where it is written what a job's working directory was made of."""
    return work.with_name(f"{work.name}.json")


def _put(temporary: Path, into: Path) -> None:
    with suppress(FileExistsError):  # os.rename says so for a folder with files in it: another node was faster
        try:
            temporary.rename(into)
        except OSError as error:
            if not into.is_dir():
                raise
            raise FileExistsError from error


def _copy_all(store: Store, entries: tuple[Entry, ...], folder: Path, stamp: int) -> None:
    for parent in {(folder / one.path).parent for one in entries}:
        parent.mkdir(parents=True, exist_ok=True)
    for one in entries:
        if one.kind == LINK:
            (folder / one.path).symlink_to(one.content)
    plain = [one for one in entries if one.kind != LINK]
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda one: _copy(store, one, folder / one.path, stamp), plain):
            pass


def _copy(store: Store, one: Entry, path: Path, stamp: int) -> None:
    """Copy one file, never as a hard link: the program may write to it. Damaged content leaves the store."""
    found = hashlib.sha256()
    source = store.blob(one.content)
    with source.open("rb", buffering=0) as blob, path.open("xb", buffering=0) as file:
        while piece := blob.read(_CHUNK):
            found.update(piece)
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
        os.fchmod(file.fileno(), 0o755 if one.kind == PROGRAM else 0o644)
        os.utime(file.fileno(), ns=(stamp, stamp))
    if found.hexdigest() != one.content:
        source.unlink(missing_ok=True)
        raise Damaged(f"the stored copy of {one.path} is damaged")
