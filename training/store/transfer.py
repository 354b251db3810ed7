"""Upload a folder with a manifest to a bucket; training.store.download downloads it.

The files are the same as on disk, so that other tools can read them: train.bin, val.bin, vocab.tiktoken and
manifest.json, or those of a checkpoint. The manifest is sent last: a folder without one is not complete. During a push
the bucket has a copy of it as manifest.json.sending, so that the same push, if it was killed, keeps the files that have
arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training import manifest
from training.manifest import NAME
from training.progress import Progress
from training.store.bucket import Place, StoreError, plain_errors

SENDING = NAME + ".sending"
FILES = 3
"""Files sent at a time, each in several parts."""

Listed = Mapping[str, Mapping[str, Any]]


class AlteredError(StoreError):
    """A folder in the bucket that does not match its manifest."""


@dataclass(frozen=True)
class Moved:
    """The result of a transfer, in bytes."""

    moved: int
    kept: int
    """Bytes that were there already."""


def complete_manifest(place: Place) -> bytes | None:
    """The manifest of a folder in the bucket if all its files are there with the right sizes, else None."""
    text = place.read(NAME)
    if text is None:
        return None
    try:
        listed = manifest.listed(manifest.parse_bytes(text, f"{place.url}/{NAME}"), place.url)
    except manifest.TokenError:
        return None
    return text if not missing_files(listed, place.files()) else None


def push(
    folder: Path,
    place: Place,
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
        here = {} if overwrite else _already_sent(place, text, listed)
        if not here:
            _clear(place, listed)
            place.write(SENDING, text)
        send = [name for name in listed if here.get(name) != listed[name]["bytes"]]
        kept = total - sum(listed[name]["bytes"] for name in send)
        progress.start(total, kept)
        with ThreadPoolExecutor(FILES) as pool:
            for done in [pool.submit(place.upload, name, folder / name, progress.advance) for name in send]:
                done.result()
        if missing := missing_files(listed, place.files()):
            raise StoreError(f"{place.url}: {', '.join(missing)} did not arrive whole")
        place.write(NAME, text)
        place.remove(SENDING)
    return Moved(total - kept, kept)


def read_source(folder: Path, trusted: bool = False) -> tuple[bytes, Listed]:
    """A folder's manifest, made now for nanoGPT's bare files, and the files that it lists, verified unless
    `trusted`."""
    try:
        if not (folder / NAME).exists() and (folder / "train.bin").exists():
            content = _manifest_of_bare(folder)
        else:
            content = manifest.parse(folder / NAME)
        listed = manifest.listed(content, str(folder / NAME))
        listed = {
            name: {**each, "bytes": _size(manifest.inside(folder, name), each["bytes"])}
            for name, each in listed.items()
        }
    except manifest.TokenError as error:
        raise StoreError(str(error), 2) from None
    if not trusted:
        for name in listed:
            if checksum_of(folder / name) != listed[name]["sha256"]:
                raise StoreError(f"{folder / name}: altered: its checksum does not match the manifest's", 2)
    return manifest.render(content).encode(), listed


def _already_sent(place: Place, text: bytes, listed: Listed) -> dict[str, int]:
    """Sizes of the files that an earlier push of the same manifest has sent; empty if there was none."""
    if place.read(SENDING) != text:
        return {}
    return {name: size for name, size in place.files().items() if name in listed}


def _clear(place: Place, listed: Listed) -> None:
    """Remove an older set's files with the same names, so that they are not taken for new ones; its manifest first."""
    place.remove(NAME)
    place.remove(SENDING)
    there = place.files()
    for name in listed:
        if name in there:
            place.remove(name)


def missing_files(listed: Listed, there: Mapping[str, int]) -> list[str]:
    """Names of listed files that are missing or have another size."""
    return [name for name, each in listed.items() if name not in there or each["bytes"] not in (None, there[name])]


def _manifest_of_bare(folder: Path) -> dict[str, Any]:
    """A manifest with checksums for nanoGPT's bare files, after checking that their tokens are in the vocabulary."""
    from training.data import token_set  # needs numpy

    content = token_set.open(folder, verify=True).manifest
    for split in content["splits"].values():
        split["sha256"] = checksum_of(folder / split["file"])
    return {**content, "format": manifest.FORMAT}


def _size(path: Path, expected: int | None) -> int:
    size = manifest.size_of(path)
    if expected is not None and size != expected:
        raise manifest.TokenError(f"{path}: {size} bytes, the manifest says {expected}")
    return size


def checksum_of(path: Path) -> str:
    try:
        return manifest.checksum(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", 2) from None
