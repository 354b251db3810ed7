"""Download a folder with a manifest from a bucket: resumable and verified.

Files are in DIR/.download until all are complete; a partial file is continued, by several range requests at a time.
They are renamed at the end, the manifest last: a folder without one is not complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training import manifest
from training.manifest import NAME
from training.progress import Progress
from training.store.bucket import Place, StoreError, plain_errors
from training.store.transfer import (
    SENDING,
    AlteredError,
    Listed,
    Moved,
    checksum_of,
    missing_files,
)

PIECE = 8 * 2**20
"""Bytes of one request."""
LONGEST = 64 * 2**20
"""Largest size of a manifest, in bytes."""
AT_ONCE = 8
"""Requests at a time; as many pieces are in memory."""


def pull(place: Place, folder: Path, *, progress: Progress | None = None) -> Moved:
    """Download a folder and verify it; existing files are replaced unless their checksums are right already. StoreError
    if it fails, AlteredError if the folder in the bucket does not match its manifest."""
    progress = progress or Progress(quiet=True)
    with plain_errors(place.url):
        text = place.read(NAME)
        if text is not None and len(text) > LONGEST:
            raise AlteredError(f"{place.url}/{NAME}: has more than {LONGEST >> 20} MiB")
        if text is None:
            place.check()
            began = place.read(SENDING) is not None
            raise StoreError(f"{place.url}: {'not all of it has been sent' if began else 'there is no such set'}", 2)
        try:
            listed = manifest.listed(manifest.parse_bytes(text, f"{place.url}/{NAME}"), place.url)
        except manifest.TokenError as error:
            raise AlteredError(str(error)) from None
        sizes = place.files()
        if missing := missing_files(listed, sizes):
            raise AlteredError(f"{place.url}: {', '.join(missing)}: torn or not there, unlike {NAME} says")
        with _locked(folder):
            return _pull(
                place, folder, text, {name: {**listed[name], "bytes": sizes[name]} for name in listed}, progress
            )


def _pull(place: Place, folder: Path, text: bytes, listed: Listed, progress: Progress) -> Moved:
    work = folder / manifest.DOWNLOAD
    if work.exists() and (not (work / NAME).exists() or (work / NAME).read_bytes() != text):
        shutil.rmtree(work)  # it belongs to another folder, or to another version of this one
    kept = {name for name, each in listed.items() if _is_complete(folder / name, each)}
    wanted = [name for name in listed if name not in kept]
    total = sum(each["bytes"] for each in listed.values())
    if wanted:
        work.mkdir(exist_ok=True)
        manifest.publish(work / NAME, text.decode())
    parts = {name: min(_length(work / name), listed[name]["bytes"]) for name in wanted}
    there = sum(listed[name]["bytes"] for name in kept) + sum(parts.values())
    free = shutil.disk_usage(folder).free
    if total - there > free:
        raise StoreError(f"{folder}: the disk is full: {(total - there) / 1e9:.2f} GB needed, {free / 1e9:.2f} GB left")
    progress.start(total, there)
    again = sum(_fetch(place, name, work / name, listed[name], progress) for name in wanted)
    _publish(folder, work, wanted, text)
    return Moved(total - there + again, there - again)


def _fetch(place: Place, name: str, target: Path, listed: Mapping[str, Any], progress: Progress) -> int:
    """Download a file, continuing an earlier attempt; returns how many of its bytes had to be discarded. AlteredError
    if the checksum is wrong."""
    had = _length(target)
    if had <= listed["bytes"] and _appended(place, name, target, listed, progress) == listed["sha256"]:
        return 0
    if had:  # the earlier attempt's part may be damaged: download all of it again
        target.unlink()
        if _appended(place, name, target, listed, progress) == listed["sha256"]:
            return min(had, int(listed["bytes"]))
    target.unlink()
    raise AlteredError(f"{place.url}/{name}: altered: its checksum does not match the manifest's")


def _appended(place: Place, name: str, target: Path, listed: Mapping[str, Any], progress: Progress) -> str:
    """Append the rest of a file; returns the checksum of all of it."""
    digest = hashlib.sha256()
    if target.is_symlink():
        target.unlink()  # never write through a link
    with target.open("ab+") as file:
        file.seek(0)
        while chunk := file.read(PIECE):
            digest.update(chunk)
        for piece in _pieces(place, name, file.tell(), listed["bytes"]):
            file.write(piece)
            file.flush()  # a kill loses only what is in memory
            digest.update(piece)
            progress.advance(len(piece))
        os.fsync(file.fileno())
    return digest.hexdigest()


def _pieces(place: Place, name: str, start: int, size: int) -> Iterator[bytes]:
    """The ranges of a file in order, with several requests at a time."""
    under_way: deque[tuple[int, Future[bytes | None]]] = deque()
    starts = iter(range(start, size, PIECE))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            while True:
                for begin in starts:
                    end = min(begin + PIECE, size)
                    under_way.append((end - begin, pool.submit(place.read, name, begin, end)))
                    if len(under_way) == AT_ONCE:
                        break
                if not under_way:
                    return
                length, request = under_way.popleft()
                piece = request.result()
                if piece is None or len(piece) != length:
                    raise StoreError(f"{place.url}/{name}: it changed while it was read")
                yield piece
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _publish(folder: Path, work: Path, names: list[str], text: bytes) -> None:
    """Rename everything to its final name, the manifest last."""
    if _bytes(folder / NAME) != text:
        (folder / NAME).unlink(missing_ok=True)
        for name in names:
            (work / name).replace(folder / name)
        manifest.sync_folder(folder)
        manifest.publish(folder / NAME, text.decode())
    else:
        for name in names:  # only the files that were altered on this machine
            (work / name).replace(folder / name)
        manifest.sync_folder(folder)
    if work.exists():
        shutil.rmtree(work)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; StoreError if another has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}", 2) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StoreError(f"{folder}: another program is writing there") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _is_complete(path: Path, listed: Mapping[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == listed["bytes"] and checksum_of(path) == listed["sha256"]


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
