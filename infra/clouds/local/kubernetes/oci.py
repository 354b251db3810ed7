"""Writes a container image as an OCI archive: without a registry, a daemon or a container tool, and as any user.

containerd reads one by `ctr --namespace k8s.io images import FILE`, skopeo and buildah as `oci-archive:FILE`. The form
is that of the OCI image specification 1.0 (image-layout.md, manifest.md, config.md, layer.md). The same content gives
the same bytes, so also the same digest: nothing in them says when, where or by whom they were written, and all files
are root's.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import stat
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What the kernel calls a processor -> what the specification calls it."""
_NAME = re.compile(r"(localhost|[a-z0-9-]+(\.[a-z0-9-]+)+)(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+:[\w][\w.-]{0,127}")
_IMAGE = "application/vnd.oci.image"
_BLOCK = 512


@dataclass(frozen=True)
class File:
    """A file of an image: its content, or the path of the file on this machine that has it."""

    content: bytes | Path
    mode: int = 0o644


@dataclass(frozen=True)
class Link:
    """A symbolic link of an image, with any target."""

    target: str


@dataclass(frozen=True)
class Folder:
    """A folder of an image. It is needed only where it is empty or has a mode of its own; others are made as needed."""

    mode: int = 0o755


Entry = File | Link | Folder
Layer = Mapping[str, Entry]
"""Path in the image -> what is there. The paths are from the image's root, with or without a slash in front."""


def tree(folder: Path, at: str = "/", skip: Collection[str] = ()) -> dict[str, Entry]:
    """The layer of a folder on this machine, with all that is in it, at the path `at` in the image.

    `skip`: paths below the folder ("var/cache") to leave out, with all below them. Raises ValueError for a device, a
    socket or a pipe, which are nothing to put into an image.
    """
    found: dict[str, Entry] = {}

    def add(path: Path, name: str) -> None:
        mode = path.lstat().st_mode
        inside = str(PurePosixPath(at, name))
        if stat.S_ISDIR(mode):
            found[inside] = Folder(stat.S_IMODE(mode))
            for entry in sorted(path.iterdir()):
                below = f"{name}/{entry.name}" if name else entry.name
                if below not in skip:
                    add(entry, below)
        elif stat.S_ISLNK(mode):
            found[inside] = Link(str(path.readlink()))
        elif stat.S_ISREG(mode):
            found[inside] = File(path, stat.S_IMODE(mode))
        else:
            raise ValueError(f"{path}: neither a file, a folder nor a link")

    add(folder, "")
    found.pop("/", None)
    return found


def write(
    path: Path,
    name: str,
    layers: Sequence[Layer],
    *,
    entrypoint: Sequence[str] = (),
    user: str = "",
    environment: Sequence[str] = (),
    architecture: str = "",
) -> str:
    """Write an image archive; the file is there only when it is whole. Returns the image's digest, "sha256:...".

    `name`: the image's whole name, with registry and tag, as "trainyard.local/base:1": Kubernetes asks for an image
    without a registry in its name as one of docker.io. `layers`: the lowest first. `user`: "65532" or "65532:65532";
    empty: root. `environment`: "PATH=/usr/bin", one each. `architecture`: this machine's, if empty. Raises
    ValueError for what no image can have.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: not the whole name of an image, as trainyard.local/base:1 is")
    settings: dict[str, object] = {"User": user, "Env": list(environment), "Entrypoint": list(entrypoint)}
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            digest = _write(_Archive(file), name, layers, settings, architecture or ARCHITECTURES[platform.machine()])
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return digest


def _write(
    archive: _Archive, name: str, layers: Sequence[Layer], settings: Mapping[str, object], architecture: str
) -> str:
    below: dict[tuple[str, ...], Entry] = {}
    written = [archive.add(f"{_IMAGE}.layer.v1.tar", _writer(_complete(layer, below))) for layer in layers]
    config = {
        **{"architecture": architecture, "os": "linux"},
        "config": {key: value for key, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in written]},  # as they are not compressed
        "history": [{"created_by": "trainyard"} for _ in written],  # buildah builds over no image without it
    }
    manifest = {
        **{"schemaVersion": 2, "mediaType": f"{_IMAGE}.manifest.v1+json"},
        **{"config": archive.add_json(f"{_IMAGE}.config.v1+json", config), "layers": written},
    }
    image = archive.add_json(f"{_IMAGE}.manifest.v1+json", manifest)
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    archive.finish([{**image, "annotations": names}])
    digest: str = image["digest"]
    return digest


def _complete(layer: Layer, below: dict[tuple[str, ...], Entry]) -> dict[tuple[str, ...], Entry]:
    """The entries in a stable order, each folder before what is in it, also those folders that nobody named.

    These have the mode of the layers below, as the uppermost layer with a folder says it. Adds the layer to `below`.
    """
    entries: dict[tuple[str, ...], Entry] = {}
    for name, entry in layer.items():
        parts = PurePosixPath("/", name).parts[1:]
        if not parts or ".." in parts or "\0" in name:
            raise ValueError(f"{name!r}: not a path in an image")
        if parts in entries:
            raise ValueError(f"{name!r}: twice in one layer")
        entries[parts] = entry
    for parts in list(entries):
        for above in (parts[:length] for length in range(1, len(parts))):
            if not isinstance(entries.setdefault(above, below.get(above, Folder())), Folder):
                raise ValueError(f"{'/'.join(parts)!r}: {'/'.join(above)!r} is not a folder")
    below |= entries
    return dict(sorted(entries.items()))


def _writer(entries: Mapping[tuple[str, ...], Entry]) -> Callable[[_Blob], object]:
    """What writes a layer: a tar file of the entries."""

    def write_to(target: _Blob) -> None:
        # Form "w|": the target can only be written. With its buffer a layer goes to the disk in large pieces.
        with tarfile.open(None, "w|", target, 1 << 20, format=tarfile.PAX_FORMAT) as made:
            for parts, entry in entries.items():
                _add(made, "/".join(parts), entry)

    return write_to


def _add(layer: tarfile.TarFile, name: str, entry: Entry) -> None:
    header = tarfile.TarInfo(name)  # of root, and of 1970
    if isinstance(entry, Link):
        header.type, header.linkname, header.mode = tarfile.SYMTYPE, entry.target, 0o777
        layer.addfile(header)
    elif isinstance(entry, Folder):
        header.type, header.mode = tarfile.DIRTYPE, entry.mode
        layer.addfile(header)
    else:
        header.mode = entry.mode
        with io.BytesIO(entry.content) if isinstance(entry.content, bytes) else entry.content.open("rb") as content:
            header.size = content.seek(0, os.SEEK_END)
            content.seek(0)
            layer.addfile(header, content)


class _Blob(io.BufferedIOBase):
    """Passes bytes on to a file, and knows their number and hash."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.hash, self.size = file, hashlib.sha256(), 0

    def write(self, data: Any, /) -> int:
        self.hash.update(data)
        self.size += memoryview(data).nbytes
        return self._file.write(data)


class _Archive:
    """The tar file of an image. Each blob is written once, as it comes, though its name is the hash of all of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, media_type: str, write_to: Callable[[_Blob], object]) -> dict[str, Any]:
        """Write a blob. Returns its descriptor."""
        begin = self._file.tell()
        self._file.write(bytes(_BLOCK))  # the header, when size and name are known
        blob = _Blob(self._file)
        write_to(blob)
        digest = blob.hash.hexdigest()
        self._file.write(bytes(-blob.size % _BLOCK))
        end = self._file.tell()
        self._file.seek(begin)
        self._file.write(_header(f"blobs/sha256/{digest}", blob.size))
        self._file.seek(end)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": blob.size}

    def add_json(self, media_type: str, value: object) -> dict[str, Any]:
        """Write a blob of JSON. Returns its descriptor."""
        content = json.dumps(value, sort_keys=True).encode()
        return self.add(media_type, lambda blob: blob.write(content))

    def finish(self, manifests: list[dict[str, Any]]) -> None:
        """Write what leads to the blobs: the index, and the mark of an OCI layout."""
        self._plain("index.json", {"schemaVersion": 2, "mediaType": f"{_IMAGE}.index.v1+json", "manifests": manifests})
        self._plain("oci-layout", {"imageLayoutVersion": "1.0.0"})
        self._file.write(bytes(2 * _BLOCK))  # the end of a tar file
        self._file.flush()

    def _plain(self, name: str, value: object) -> None:
        content = json.dumps(value, sort_keys=True).encode()
        self._file.write(_header(name, len(content)) + content + bytes(-len(content) % _BLOCK))


def _header(name: str, size: int) -> bytes:
    """The one block in front of a file of a tar archive. GNU's form: also a size over 8 GiB has place in it."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o644
    return header.tobuf(tarfile.GNU_FORMAT)
