"""Reads a rank's log file on its node while it grows, for the node's keeper."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO

from node.job import files


class LogReader:
    """Reads a rank's log file as it grows, across its rotation (see rank_wrapper.RankLog)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._time = 0.0

    def new(self) -> list[tuple[float, str]]:
        """(Unix time, text) of each whole line since the last call. A line whose time was cut, as by a full disk, gets
        the time of the line before."""
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = self._path.open("rb")
        found = self._complete(self._file.read())
        if not self._is_current(self._file):
            found += self._complete(self._file.read())  # written between the read above and the rotation
            self._file.close()
            self._file, self._rest = None, b""
        return found

    def _complete(self, data: bytes) -> list[tuple[float, str]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._parsed(line.decode(errors="replace")) for line in lines if line]

    def _parsed(self, line: str) -> tuple[float, str]:
        when, space, text = line.partition(" ")
        if not (space and files.TIME.fullmatch(when)):
            return self._time or time.time(), line
        self._time = float(when)
        return self._time, text

    def _is_current(self, file: IO[bytes]) -> bool:
        try:
            return self._path.stat().st_ino == os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            return False
