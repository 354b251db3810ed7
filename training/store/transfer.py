"""Upload and download a folder with a manifest: both continue after a kill, and the manifest is written last.

In the bucket the files are the same as on disk, so that other tools can read them. During a push the bucket has a copy
of the manifest as manifest.json.sending, so that the same push, if it was killed, keeps the files that have arrived.
A pull writes into DIR/.download; partial files are continued, by several range requests at a time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from training import manifest
from training.manifest import NAME, Listed
from training.progress import Progress
from training.store.bucket import BucketFolder, StoreError, plain_errors
from training.streams import ordered_map

SENDING = NAME + ".sending"
FILES = 3  # files sent at a time, each in several parts
LONGEST = 64 * 2**20  # largest size of a manifest, in bytes
PIECE = 8 * 2**20  # bytes of one download request
AT_ONCE = 8  # download requests at a time; as many pieces are in memory


class AlteredError(StoreError):
    """A folder in the bucket that does not match its manifest."""


class Moved(NamedTuple):
    """The result of a transfer: bytes moved, and bytes that were already present."""

    moved: int
    kept: int


def read_manifest(place: BucketFolder) -> tuple[bytes, Listed] | None:
    """The manifest of a folder in the bucket, and its files; None: there is none. AlteredError: they do not match."""
    text = place.read(NAME)
    if text is None:
        return None
    if len(text) > LONGEST:
        raise AlteredError(f"{place.url}/{NAME}: has more than {LONGEST >> 20} MiB")
    try:
        listed = manifest.listed(manifest.parse_bytes(text, f"{place.url}/{NAME}"), place.url)
    except manifest.TokenError as error:
        raise AlteredError(str(error)) from None
    sizes = place.files()
    if missing := missing_files(listed, sizes):
        raise AlteredError(f"{place.url}: {', '.join(missing)}: torn or missing, unlike in {NAME}")
    return text, {name: {**each, "bytes": sizes[name]} for name, each in listed.items()}


def complete_manifest(place: BucketFolder) -> bytes | None:
    """The manifest of a folder in the bucket if all its files are there with the right sizes, else None."""
    try:
        found = read_manifest(place)
    except AlteredError:
        return None
    return found[0] if found else None


def push(
    folder: Path,
    place: BucketFolder,
    *,
    overwrite: bool = False,
    trusted: bool = False,
    progress: Progress | None = None,
) -> Moved:
    """Upload a folder. `overwrite` also sends files that are in the bucket already; `trusted` skips verifying checksums
    before, for files that this job has just written. StoreError if it fails."""
    progress = progress or Progress(quiet=True)
    text, listed = read_source(folder, trusted)
    total = sum(each["bytes"] for each in listed.values())
    with plain_errors(place.url):
        if not overwrite and complete_manifest(place) == text:
            return Moved(0, total)
        place.check()
        present = place.files()
        if overwrite or place.read(SENDING) != text:
            # Remove an older set's files, its manifest first, so that they are not taken for this set's.
            for name in (NAME, SENDING, *(name for name in listed if name in present)):
                place.remove(name)
            place.write(SENDING, text)
            present = {}
        send = [name for name, each in listed.items() if present.get(name) != each["bytes"]]
        kept = total - sum(listed[name]["bytes"] for name in send)
        progress.start(total, kept)
        with ThreadPoolExecutor(FILES) as pool:
            for done in [pool.submit(place.upload, name, folder / name, progress.advance) for name in send]:
                done.result()
        finish(place, listed, text)
    return Moved(total - kept, kept)


def finish(place: BucketFolder, listed: Listed, text: bytes) -> None:
    """Write the manifest of an upload; StoreError if a file did not arrive."""
    if missing := missing_files(listed, place.files()):
        raise StoreError(f"{place.url}: {', '.join(missing)} did not arrive completely")
    place.write(NAME, text)
    place.remove(SENDING)


def read_source(folder: Path, trusted: bool = False) -> tuple[bytes, Listed]:
    """A folder's manifest (made now for nanoGPT's bare files) and its files, verified unless `trusted`. StoreError."""
    with plain_errors(str(folder)):
        bare = not (folder / NAME).exists() and (folder / "train.bin").exists()
        content = _manifest_of_bare(folder) if bare else manifest.parse(folder / NAME)
        listed = {
            name: {**each, "bytes": manifest.size_of(manifest.inside(folder, name), each["bytes"])}
            for name, each in manifest.listed(content, str(folder / NAME)).items()
        }
        if not trusted:
            manifest.verify(folder, listed)
    return manifest.render(content).encode(), listed


def missing_files(listed: Listed, sizes: Mapping[str, int]) -> list[str]:
    """Names of listed files that are missing or have another size."""
    return [name for name, each in listed.items() if name not in sizes or each["bytes"] not in (None, sizes[name])]


def _manifest_of_bare(folder: Path) -> dict[str, Any]:
    """A manifest with checksums for nanoGPT's bare files, after checking that their tokens are in the vocabulary."""
    from training.data import token_set  # needs numpy

    content = token_set.open(folder, verify=True).manifest
    for split in content["splits"].values():
        split["sha256"] = manifest.checksum(folder / split["file"])
    return {**content, "format": manifest.FORMAT}


def pull(place: BucketFolder, folder: Path, *, progress: Progress | None = None) -> Moved:
    """Download a folder and verify it; existing files are replaced unless their checksums are right already. StoreError
    if it fails, AlteredError if the folder in the bucket does not match its manifest."""
    with plain_errors(place.url):
        found = read_manifest(place)
        if found is None:
            place.check()
            began = place.read(SENDING) is not None
            raise StoreError(f"{place.url}: {'not all of it has been sent' if began else 'there is no such set'}", 2)
        with manifest.locked(folder):
            return _pull(place, folder, *found, progress or Progress(quiet=True))


def _pull(place: BucketFolder, folder: Path, text: bytes, listed: Listed, progress: Progress) -> Moved:
    work = folder / manifest.DOWNLOAD
    if work.exists() and read_if_exists(work / NAME) != text:
        shutil.rmtree(work)  # it belongs to another folder, or to another version of this one
    kept = {name for name, each in listed.items() if _is_complete(folder / name, each)}
    wanted = [name for name in listed if name not in kept]
    total = sum(each["bytes"] for each in listed.values())
    if wanted:
        work.mkdir(exist_ok=True)
        manifest.publish(work / NAME, text.decode())
    present = sum(listed[name]["bytes"] for name in kept)
    present += sum(min(_length(work / name), listed[name]["bytes"]) for name in wanted)
    free = shutil.disk_usage(folder).free
    if total - present > free:
        needed = f"{(total - present) / 1e9:.2f} GB needed, {free / 1e9:.2f} GB left"
        raise StoreError(f"{folder}: the disk is full: {needed}")
    progress.start(total, present)
    again = sum(_fetch(place, name, work / name, listed[name], progress) for name in wanted)
    same = read_if_exists(folder / NAME) == text
    if not same:  # another version's manifest goes first, and the new one comes last
        (folder / NAME).unlink(missing_ok=True)
    for name in wanted:
        (work / name).replace(folder / name)
    manifest.sync_folder(folder)
    if not same:
        manifest.publish(folder / NAME, text.decode())
    if work.exists():
        shutil.rmtree(work)
    return Moved(total - present + again, present - again)


def _fetch(place: BucketFolder, name: str, target: Path, listed: Mapping[str, Any], progress: Progress) -> int:
    """Download a file, continuing an earlier attempt; returns how many of its bytes were discarded. AlteredError."""
    discarded, size = 0, int(listed["bytes"])
    while True:
        had = _length(target)
        if had <= size and _append(place, name, target, size, progress) == listed["sha256"]:
            return discarded
        target.unlink()
        if not had:
            raise AlteredError(f"{place.url}/{name}: altered: its checksum does not match the manifest's")
        discarded = min(had, size)  # they may be damaged: download all of the file again


def _append(place: BucketFolder, name: str, target: Path, size: int, progress: Progress) -> str:
    """Append the rest of a file of `size` bytes; returns the checksum of all of it."""
    digest = hashlib.sha256()
    if target.is_symlink():
        target.unlink()  # never write through a link
    with target.open("ab+") as file:
        file.seek(0)
        while chunk := file.read(PIECE):
            digest.update(chunk)
        for piece in _pieces(place, name, file.tell(), size):
            file.write(piece)
            file.flush()  # a kill loses only what is in memory
            digest.update(piece)
            progress.advance(len(piece))
        os.fsync(file.fileno())
    return digest.hexdigest()


def _pieces(place: BucketFolder, name: str, start: int, size: int) -> Generator[bytes, None, None]:
    """The bytes [start, size) of a file, with several requests at a time."""

    def read(begin: int) -> bytes:
        end = min(begin + PIECE, size)
        piece = place.read(name, begin, end)
        if piece is None or len(piece) != end - begin:
            raise StoreError(f"{place.url}/{name}: it changed while it was read")
        return piece

    return ordered_map(read, range(start, size, PIECE), AT_ONCE, AT_ONCE)


def _is_complete(path: Path, listed: Mapping[str, Any]) -> bool:
    return path.is_file() and _length(path) == listed["bytes"] and manifest.checksum(path) == listed["sha256"]


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def read_if_exists(path: Path) -> bytes | None:
    """The content of a file; None if it does not exist."""
    return path.read_bytes() if path.exists() else None
