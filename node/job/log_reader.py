"""Reads a rank's log file on its node while it grows, for the node's keeper."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO

from node.job import files

READ = 1 << 20
"""Bytes that are read in one go, so that a program's hundred megabytes keep its node's keeper from nothing else."""


def rotated(path: Path) -> Path:
    """Where a rank's log file is when it is full, until all of it has been read."""
    return path.with_suffix(".log.1")


class LogReader:
    """Reads a rank's log file as it grows, across its rotation (see rank_wrapper.RankLog)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._time = 0.0
        self.is_behind = False
        """Whether the last call of `new` has left lines unread."""

    def new(self) -> list[tuple[float, str]]:
        """(Unix time, text) of the next whole lines, of READ bytes at most. A line whose time was cut, as by a full
        disk, gets the time of the line before."""
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = self._path.open("rb")
            if rotated(self._path).exists():
                self._file = rotated(self._path).open("rb")
        is_current = self._is_current(self._file)  # asked first: what is written between a read and a rotation counts
        data = self._file.read(READ)
        self.is_behind = len(data) == READ or not is_current
        found = self._complete(data)
        if len(data) < READ and not is_current and self._path.exists():
            self._file.close()
            # Opened before the old one is removed: from then on it may be rotated, too.
            self._file, self._rest = self._path.open("rb"), b""
            rotated(self._path).unlink(missing_ok=True)
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
