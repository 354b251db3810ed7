"""The list of a working directory's files, the same on the operator's machine and on the nodes.

As bytes it is a JSON list of [path, kind, size, content], sorted by path, without spaces: equal directories have equal
bytes. Its SHA-256 is the name of that state of the directory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

FILE, PROGRAM, LINK = "file", "program", "link"
"""The kinds: a plain file, one that may be executed, and a symbolic link."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """A file or link of a working directory."""

    path: str  # below the directory, with `/`
    kind: str
    size: int  # in bytes; 0 for a link
    content: str  # the SHA-256 of a file in hexadecimal; where a link points to


def encode(entries: Iterable[Entry]) -> bytes:
    """The manifest of these files; their order does not matter."""
    rows = sorted((one.path, one.kind, one.size, one.content) for one in entries)
    return json.dumps(rows, separators=(",", ":")).encode()


def decode(data: bytes) -> tuple[Entry, ...]:
    """The reverse of `encode`. ValueError if it is no manifest, or names a place outside of the directory."""
    try:
        entries = tuple(Entry(*row) for row in json.loads(data))
        is_right = all(_is_right(one) for one in entries)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a manifest: {error}") from None
    if not is_right or len({one.path for one in entries}) != len(entries):
        raise ValueError("not a manifest of a working directory")
    return entries


def _is_right(one: Entry) -> bool:
    path = PurePosixPath(one.path)
    is_inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    is_file = one.kind in (FILE, PROGRAM) and _SHA256.fullmatch(one.content) is not None and one.size >= 0
    return is_inside and (is_file or (one.kind == LINK and bool(one.content)))


def digest(data: bytes) -> str:
    """The name of a manifest: its SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
