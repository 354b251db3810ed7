"""The content store of a node, or of the folder that a cluster's nodes share."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from node.workdir import manifest
from node.workdir.manifest import LINK, Entry

DEFAULT = Path.home() / ".cache" / "trainyard" / "work"
OLD = 14 * 86400.0
"""Seconds since its last use after which a state of a working directory may be removed."""
MOST = 20 << 30
"""Bytes of content above which states that were not used for _RECENT seconds are removed, the oldest first."""
_RECENT = 86400.0
_ARRIVING = 3600.0  # seconds that content without a manifest stays: one may be arriving
_CHUNK = 1 << 20


class Damaged(Exception):
    """Content that is not what its name says: one line."""


class Store:
    """The files of a store, in a folder that is made when something is put into it."""

    def __init__(self, folder: Path = DEFAULT) -> None:
        self.folder = folder

    def blob(self, sha256: str) -> Path:
        """Where the content with this hash is."""
        return self.folder / "blobs" / sha256[:2] / sha256

    def manifest(self, snapshot: str) -> Path:
        """Where the manifest with this hash is."""
        return self.folder / "manifests" / f"{snapshot}.json"

    def entries(self, snapshot: str) -> tuple[Entry, ...]:
        """The files of a state of a working directory, which counts as used now. FileNotFoundError if it is not here,
        Damaged if it cannot be read."""
        path = self.manifest(snapshot)
        data = path.read_bytes()
        if manifest.digest(data) != snapshot:
            path.unlink()
            raise Damaged(f"{path} is damaged")
        os.utime(path)
        return manifest.decode(data)

    def missing(self, entries: Iterable[Entry]) -> dict[str, int]:
        """The content of these files that is not here, as hash and size. What is here counts as used now."""
        lacking: dict[str, int] = {}
        for sha256, size in {one.content: one.size for one in entries if one.kind != LINK}.items():
            path = self.blob(sha256)
            try:
                is_there = path.stat().st_size == size
                os.utime(path)  # so that it is not removed before the manifest has come
            except FileNotFoundError:
                is_there = False
            if not is_there:
                lacking[sha256] = size
        return lacking

    def take(self, sha256: str, size: int, source: BinaryIO) -> None:
        """Read content of this size from `source`. EOFError if it ends before, Damaged if the hash is another."""
        path = self.blob(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _whole(path) as temporary, temporary.open("wb") as file:
            found = hashlib.sha256()
            while size:
                piece = source.read(min(size, _CHUNK))
                if not piece:
                    raise EOFError("the connection ended in the middle of a file")
                found.update(piece)
                file.write(piece)
                size -= len(piece)
            if found.hexdigest() != sha256:
                raise Damaged(f"arrived as {found.hexdigest()[:12]}, not as {sha256[:12]}")

    def keep(self, data: bytes) -> None:
        """Write a manifest, whose content is here."""
        path = self.manifest(manifest.digest(data))
        path.parent.mkdir(parents=True, exist_ok=True)
        with _whole(path) as temporary:
            temporary.write_bytes(data)

    def forget_old(self) -> None:
        """Remove the states that are old, or too many, and the content that no state has."""
        now = time.time()
        states = sorted(self.folder.glob("manifests/*.json"), key=_used, reverse=True)
        needed: dict[str, int] = {}
        for path in states:
            with suppress(OSError, ValueError):
                entries = manifest.decode(path.read_bytes())
                more = needed | {one.content: one.size for one in entries if one.kind != LINK}
                age = now - _used(path)
                if age > OLD or (age > _RECENT and sum(more.values()) > MOST):
                    path.unlink()
                else:
                    needed = more
        for blob in self.folder.glob("blobs/??/*"):
            with suppress(OSError):
                if blob.name not in needed and now - _used(blob) > _ARRIVING:
                    blob.unlink()


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process has removed it
        return 0.0


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place if the block succeeds, and is removed if it does not."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    os.close(number)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
