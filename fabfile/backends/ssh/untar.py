"""Extract a tar archive from a head that is not trusted: write the wanted files, and nothing else.

tarfile is not used: Debian 12's Python has no extraction filters, those of later versions were circumvented
(CVE-2025-4517), and a hostile header can keep its parser busy for ever (CVE-2025-8194). This reader accepts only the
part of GNU tar's format that `tar --format=gnu` writes for plain files; anything else, such as a link, is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from fabfile.backends.base import Refused
from fabfile.remote.command import Result

_BLOCK = 512
_CHUNK = 1 << 18
_LONGEST_NAME = 4096
_AFTER_END = 1 << 20  # most bytes after the archive's end: tar fills its last record, of 10 KiB, with zeros
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a folder that nobody asked for",
    b"6": "a FIFO",
    b"S": "a sparse file",
}


class Stream:
    """A command's output, read in pieces of a given size."""

    def __init__(self, parts: Iterator[bytes | Result]) -> None:
        self._parts = parts
        self._rest = memoryview(b"")
        self._result: Result | None = None

    def some(self, most: int) -> memoryview:
        """From 1 to `most` bytes; none at the end."""
        while not self._rest and self._result is None:
            part = next(self._parts)
            if isinstance(part, Result):
                self._result = part
            else:
                self._rest = memoryview(part)
        piece, self._rest = self._rest[:most], self._rest[most:]
        return piece

    def pieces(self, count: int) -> Iterator[memoryview]:
        """Yield the next `count` bytes; EOFError if there are fewer."""
        while count:
            piece = self.some(min(count, _CHUNK))
            if not piece:
                raise EOFError(f"what it sends ends in the middle ({self._result.why if self._result else ''})")
            count -= len(piece)
            yield piece

    def read(self, count: int) -> bytes:
        """The next `count` bytes, in memory at once; EOFError if there are fewer."""
        return b"".join(self.pieces(count))

    def result(self) -> Result:
        """The command's result, after at most _AFTER_END more bytes; Refused if there are more."""
        allowed = _AFTER_END
        while piece := self.some(_CHUNK):
            allowed -= len(piece)
            if allowed < 0:
                raise Refused("more is sent after the archive's end")
        assert self._result
        return self._result


@dataclass(frozen=True)
class Member:
    """A plain file in the archive; its content follows."""

    name: str
    size: int
    executable: bool
    modified: int  # seconds of Unix time


def extract(
    stream: Stream, wanted: Collection[str], folder: Path, limit: int, progress: Callable[[int], None]
) -> dict[str, int]:
    """Write the archive's files into a folder that nobody else writes to; returns name and size of each. Only names in
    `wanted` are accepted, each once; all must have passed filenames.refusal. At most `limit` bytes are written;
    `progress` is called with each number of bytes written. Raises Refused for anything else, EOFError for a truncated
    archive."""
    done: dict[str, int] = {}
    while (member := _next(stream)) is not None:
        if member.name not in wanted:
            raise Refused(f"{member.name!r} was not asked for")
        if member.name in done:
            raise Refused(f"{member.name!r} is sent twice")
        limit -= member.size
        if limit < 0:
            raise Refused(f"{member.name!r} has {member.size} bytes, more than was announced or than there is room for")
        _write(stream, member, folder / member.name, progress)
        done[member.name] = member.size
    return done


def _write(stream: Stream, member: Member, path: Path, progress: Callable[[int], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Always a new file, never through a link. O_EXCL also catches two names that are one on this file system.
        file = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if member.executable else 0o644
        )
    except FileExistsError:
        raise Refused(f"{member.name!r} is on this disk the same as another of its files") from None
    with os.fdopen(file, "wb") as output:
        for piece in stream.pieces(member.size):
            output.write(piece)
            progress(len(piece))
    stream.read(-member.size % _BLOCK)
    os.utime(path, (member.modified, member.modified))


def _next(stream: Stream) -> Member | None:
    """The next file's header; None at the archive's end."""
    header = stream.read(_BLOCK)
    if not any(header):
        return None
    long_name = b""
    if _kind(header) == b"L":  # a name of more than 100 bytes comes in a member of its own
        size = _number(header[124:136], "name")
        if not 0 < size <= _LONGEST_NAME:
            raise Refused(f"a name of {size} bytes")
        long_name = stream.read(size + -size % _BLOCK)[:size]
        header = stream.read(_BLOCK)
    raw = (long_name or header[:100]).split(b"\0")[0]
    name = raw.decode(errors="surrogateescape").removeprefix("./")
    kind = _kind(header)
    if kind != b"0":
        raise Refused(f"{name!r} is {_KINDS.get(kind, f'of the unknown kind {kind!r}')}; only plain files are taken")
    return Member(
        name,
        _number(header[124:136], name),
        bool(_number(header[100:108], name) & 0o100),
        min(_number(header[136:148], name), 1 << 33),
    )


def _kind(header: bytes) -> bytes:
    """The type in a header, after a check that it is GNU tar's and its checksum is right."""
    if header[257:265] != b"ustar  \0":
        raise Refused("this is no archive of GNU tar's")
    total = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    if total != _number(header[148:156], "checksum"):
        raise Refused("a header with a wrong checksum")
    return header[156:157]


def _number(field: bytes, name: str) -> int:
    """A number: octal digits, or from 8 GiB on big-endian bytes after 0x80. No other form, and none below zero."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.rstrip(b" \0")
    if not digits or any(digit not in b"01234567" for digit in digits):
        raise Refused(f"{name!r}: {field!r} is no number")
    return int(digits, 8)
