"""Kubernetes' own published programs: fetched, and used only if they have the hash that its release notes name.

Where they are out of reach they are built from their Go modules instead (`programs.py`).
"""

from __future__ import annotations

import hashlib
import http.client
import platform
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from infra.errors import OperationError

URL = "https://dl.k8s.io"
SHA512 = {
    "v1.34.4/kubernetes-server-linux-amd64.tar.gz": "65c75e81e3ea488f6d42b493cad64d7577ddfa1e5372037a1c841ac069039997"
    "d359b5b2f2d44e7665bf04c48ed0065cf9d4c9801b1e63bb6a1b099ef00d4863",
    "v1.34.4/kubernetes-server-linux-arm64.tar.gz": "a1fad7060ed67b5634f32f3256a295179dd887dab5c82b8550c2eb62c69df34c"
    "fbb311c8f93e7608d558eba32b9e2ddc23976db39e512fd747cc6bf9b4c1765f",
}
"""From CHANGELOG/CHANGELOG-1.34.md of github.com/kubernetes/kubernetes."""
_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What Linux calls a processor -> what Go does."""
_INSIDE = "kubernetes/server/bin"
SILENT_SECONDS = 10.0
"""Without an answer, or without a byte of it."""
_SAY_SECONDS = 15.0
_CHUNK = 1 << 20


class OutOfReach(Exception):
    """The server cannot be reached, or does not give the whole file; the message says which."""


def fetch(version: str, names: Sequence[str], to: Path, say: Callable[[str], None], check: Callable[[], None]) -> None:
    """Put the programs `names` of a version into the folder `to`. Raises OutOfReach, or OperationError for a file that
    is another one than was published. `check` is called meanwhile, and raises when they are no longer wanted."""
    file = f"v{version}/kubernetes-server-linux-{_NAMES.get(platform.machine(), platform.machine())}.tar.gz"
    if file not in SHA512:
        raise OutOfReach(f"{file}: its hash is not known here")
    archive, url = to / "server.tar.gz", f"{URL}/{file}"
    try:
        found = _download(url, archive, say, check)
        if found != SHA512[file]:
            raise OperationError(f"{url} has sha512 {found}, and should have {SHA512[file]}")
        _unpack(archive, url, names, to, check)
    finally:
        archive.unlink(missing_ok=True)


def _download(url: str, to: Path, say: Callable[[str], None], check: Callable[[], None]) -> str:
    """Write a file; returns its sha512."""
    digest, done, told = hashlib.sha512(), 0, time.monotonic()
    with to.open("wb") as file:
        for chunk, size in _chunks(url):
            check()
            digest.update(chunk)
            file.write(chunk)
            done += len(chunk)
            if time.monotonic() - told > _SAY_SECONDS:
                told = time.monotonic()
                say(f"{url}: {done >> 20} of {size >> 20} MiB")
    return digest.hexdigest()


def _chunks(url: str) -> Iterator[tuple[bytes, int]]:
    """The parts of a file, each with the size of the whole. OutOfReach."""
    done = 0
    try:
        with urllib.request.urlopen(url, timeout=SILENT_SECONDS) as answer:
            size = int(answer.headers["Content-Length"] or 0)  # 0: not known
            while chunk := answer.read1(_CHUNK):
                done += len(chunk)
                yield chunk, size
    except (OSError, http.client.HTTPException) as error:
        why = error.reason if type(error) is urllib.error.URLError else error
        raise OutOfReach(f"{url}: {why}{f', after {done} bytes' if done else ''}") from None
    if done < size:
        raise OutOfReach(f"{url}: ended after {done} of {size} bytes")


def _unpack(archive: Path, url: str, names: Sequence[str], to: Path, check: Callable[[], None]) -> None:
    wanted = {f"{_INSIDE}/{name}": name for name in names}
    with tarfile.open(archive, "r|gz") as members:
        for member in members:
            check()
            if (name := wanted.pop(member.name, "")) and (content := members.extractfile(member)):
                with content, (to / name).open("wb") as program:
                    shutil.copyfileobj(content, program, _CHUNK)
                (to / name).chmod(0o755)
    if wanted:
        raise OperationError(f"{url}: has no {', '.join(wanted)}")
