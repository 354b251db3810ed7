"""A folder with a manifest, to a bucket and back: what is whole stays, what is torn goes on, the manifest comes last.

In the bucket it lies as on disk, so that any other tool reads it: train.bin, val.bin, vocab.tiktoken, manifest.json; or
a checkpoint's files. There, as here, a folder without a manifest.json is not whole. While files are sent,
manifest.json.sending says of what: the same push, killed and started again, keeps the files that are there already.
Files that come are in DIR/.download until all of them are there and verified.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from training import manifest
from training.bucket import Place, StoreError, explained
from training.manifest import NAME

SENDING = NAME + ".sending"
PIECE = 8 * 2**20
"""Bytes of one request when a file comes."""
AT_ONCE = 8
"""Requests under way; so many pieces are in memory."""
FILES = 3
"""Files sent at once, each in several parts."""

Listed = Mapping[str, Mapping[str, Any]]


class AlteredError(StoreError):
    """A folder in the bucket that is not what its manifest says."""


class Advance(Protocol):
    """How a transfer tells how far it is: bytes moved, out of so many."""

    def start(self, total: int, done: int) -> None: ...
    def moved(self, count: int) -> None: ...


class Silent:
    def start(self, total: int, done: int) -> None:
        return

    def moved(self, count: int) -> None:
        return


@dataclass(frozen=True)
class Moved:
    """What a transfer came to, in bytes."""

    moved: int
    kept: int
    """What was there already."""


def whole(place: Place) -> bytes | None:
    """The manifest of a folder in the bucket if all that it names is there, by size; None: not whole."""
    text = place.read(NAME)
    if text is None:
        return None
    try:
        listed = manifest.listed(manifest.parse_bytes(text, f"{place.url}/{NAME}"), place.url)
    except manifest.TokenError:
        return None
    return text if not _missing(listed, place.files()) else None


def push(
    folder: Path, place: Place, *, overwrite: bool = False, trusted: bool = False, told: Advance | None = None
) -> Moved:
    """Sends a whole folder. `overwrite` sends what seems to be there as well; `trusted`: it was written just now, by
    this job, and need not be read once more before it is sent."""
    told = told or Silent()
    text, listed = described(folder, trusted)
    total = sum(each["bytes"] for each in listed.values())
    with explained(place.url):
        if not overwrite and whole(place) == text:
            return Moved(0, total)
        place.check()
        here = {} if overwrite else _begun(place, text, listed)
        if not here:
            _clear(place, listed)
            place.write(SENDING, text)
        send = [name for name in listed if here.get(name) != listed[name]["bytes"]]
        kept = total - sum(listed[name]["bytes"] for name in send)
        told.start(total, kept)
        with ThreadPoolExecutor(FILES) as pool:
            for done in [pool.submit(place.upload, name, folder / name, told.moved) for name in send]:
                done.result()
        if missing := _missing(listed, place.files()):
            raise StoreError(f"{place.url}: {', '.join(missing)} did not arrive whole")
        place.write(NAME, text)
        place.remove(SENDING)
    return Moved(total - kept, kept)


def described(folder: Path, trusted: bool = False) -> tuple[bytes, Listed]:
    """A folder's manifest, as it is or, of nanoGPT's bare files, made now; and what it lists, verified."""
    try:
        if not (folder / NAME).exists() and (folder / "train.bin").exists():
            content = _of_bare(folder)
        else:
            content = manifest.parse(folder / NAME)
        listed = manifest.listed(content, str(folder / NAME))
        listed = {name: {**each, "bytes": _size(folder / name, each["bytes"])} for name, each in listed.items()}
    except manifest.TokenError as error:
        raise StoreError(str(error), 2) from None
    if not trusted:
        for name in listed:
            if _checksum(folder / name) != listed[name]["sha256"]:
                raise StoreError(f"{folder / name}: altered: its checksum does not match the manifest's", 2)
    return manifest.render(content).encode(), listed


def pull(place: Place, folder: Path, *, told: Advance | None = None) -> Moved:
    """Brings a folder from the bucket, over whatever is there under that name; verified when this returns."""
    told = told or Silent()
    with explained(place.url):
        text = place.read(NAME)
        if text is None:
            place.check()
            began = place.read(SENDING) is not None
            raise StoreError(f"{place.url}: {'not all of it has been sent' if began else 'there is no such set'}", 2)
        try:
            listed = manifest.listed(manifest.parse_bytes(text, f"{place.url}/{NAME}"), place.url)
        except manifest.TokenError as error:
            raise AlteredError(str(error)) from None
        sizes = place.files()
        if missing := _missing(listed, sizes):
            raise AlteredError(f"{place.url}: {', '.join(missing)}: torn or not there, unlike {NAME} says")
        with _alone(folder):
            return _pull(place, folder, text, {name: {**listed[name], "bytes": sizes[name]} for name in listed}, told)


def _pull(place: Place, folder: Path, text: bytes, listed: Listed, told: Advance) -> Moved:
    work = folder / manifest.DOWNLOAD
    if work.exists() and (not (work / NAME).exists() or (work / NAME).read_bytes() != text):
        shutil.rmtree(work)  # of another set, or another version of this one
    kept = {name for name, each in listed.items() if _is_whole(folder / name, each)}
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
    told.start(total, there)
    again = sum(_fetch(place, name, work / name, listed[name], told) for name in wanted)
    _settle(folder, work, wanted, text)
    return Moved(total - there + again, there - again)


def _fetch(place: Place, name: str, target: Path, listed: Mapping[str, Any], told: Advance) -> int:
    """One file, on from where an earlier attempt came to; how much of that was of no use."""
    had = _length(target)
    if had <= listed["bytes"] and _appended(place, name, target, listed, told) == listed["sha256"]:
        return 0
    if had:  # what was left of the earlier attempt may have been torn: once more, all of it
        target.unlink()
        if _appended(place, name, target, listed, told) == listed["sha256"]:
            return min(had, int(listed["bytes"]))
    target.unlink()
    raise AlteredError(f"{place.url}/{name}: altered: its checksum does not match the manifest's")


def _appended(place: Place, name: str, target: Path, listed: Mapping[str, Any], told: Advance) -> str:
    """The rest of a file behind what is there; the checksum of the whole."""
    digest = hashlib.sha256()
    with target.open("ab+") as file:
        file.seek(0)
        while chunk := file.read(PIECE):
            digest.update(chunk)
        for piece in _pieces(place, name, file.tell(), listed["bytes"]):
            file.write(piece)
            file.flush()  # a kill costs what is in memory, not what has come
            digest.update(piece)
            told.moved(len(piece))
        os.fsync(file.fileno())
    return digest.hexdigest()


def _pieces(place: Place, name: str, start: int, size: int) -> Iterator[bytes]:
    """A file's ranges in order, several of them under way at once."""
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
                    raise StoreError(f"{place.url}/{name}: it became another while it was read")
                yield piece
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _settle(folder: Path, work: Path, names: list[str], text: bytes) -> None:
    """Everything under its final name, the manifest last."""
    if _bytes(folder / NAME) != text:
        (folder / NAME).unlink(missing_ok=True)
        for name in names:
            (work / name).replace(folder / name)
        manifest.sync_folder(folder)
        manifest.publish(folder / NAME, text.decode())
    else:
        for name in names:  # only what was altered here
            (work / name).replace(folder / name)
        manifest.sync_folder(folder)
    if work.exists():
        shutil.rmtree(work)


def _begun(place: Place, text: bytes, listed: Listed) -> dict[str, int]:
    """What an earlier push of this very folder has sent; empty: there was none."""
    if place.read(SENDING) != text:
        return {}
    return {name: size for name, size in place.files().items() if name in listed}


def _clear(place: Place, listed: Listed) -> None:
    """Nothing of another set stays that could be taken for a part of this one; its manifest goes first."""
    place.remove(NAME)
    place.remove(SENDING)
    there = place.files()
    for name in listed:
        if name in there:
            place.remove(name)


def _missing(listed: Listed, there: Mapping[str, int]) -> list[str]:
    """Files that are not there, or not in their size (where the manifest says it)."""
    return [name for name, each in listed.items() if name not in there or each["bytes"] not in (None, there[name])]


def _of_bare(folder: Path) -> dict[str, Any]:
    """A manifest with checksums for nanoGPT's files, whose tokens are looked at, as nothing else vouches for them."""
    from training import tokens  # numpy only here

    content = tokens.open(folder, verify=True).manifest
    for split in content["splits"].values():
        split["sha256"] = _checksum(folder / split["file"])
    return {**content, "format": manifest.FORMAT}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The folder for this process alone."""
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


def _is_whole(path: Path, listed: Mapping[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == listed["bytes"] and _checksum(path) == listed["sha256"]


def _size(path: Path, expected: int | None) -> int:
    size = manifest.size_of(path)
    if expected is not None and size != expected:
        raise manifest.TokenError(f"{path}: {size} bytes, the manifest says {expected}")
    return size


def _checksum(path: Path) -> str:
    try:
        return manifest.checksum(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", 2) from None


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


class Lines:
    """Progress from several threads as lines of text."""

    def __init__(self, label: str) -> None:
        self._label, self._lock, self._progress = label, threading.Lock(), None

    def start(self, total: int, done: int) -> None:
        from training.progress import Progress

        self._progress = Progress(total, done, label=self._label)

    def moved(self, count: int) -> None:
        with self._lock:
            if self._progress is not None:
                self._progress.advance(count, count)
