"""The run's lines of metrics, compressed for the bucket: with each checkpoint only what was added since the last one.

What is sent is one gzip file, as `gzip.compress` would make of all lines; it is kept here, compressed, in between.
"""

from __future__ import annotations

import zlib

_LEVEL = 3
_GZIP = 31
"""zlib's number for a gzip file, with the largest window."""


class PackedLines:
    """A file that grows, compressed. One that was cut, or begun anew, is compressed anew, too."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._size = self._sum = 0
        self._packed = bytearray()
        self._packer = zlib.compressobj(_LEVEL, wbits=_GZIP)

    def of(self, lines: bytes) -> bytes:
        """The file's bytes so far as a gzip file."""
        view = memoryview(lines)
        if zlib.crc32(view[: self._size]) != self._sum or len(lines) < self._size:
            self._begin()
        added = view[self._size :]
        self._packed += self._packer.compress(added) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        self._size, self._sum = len(lines), zlib.crc32(added, self._sum)
        return bytes(self._packed) + self._packer.copy().flush()
