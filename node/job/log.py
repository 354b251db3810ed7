"""The job's log on the head: writes every line of every rank as `time node rank text`, and reads it back by offset.

New lines go to the file `log`. When it is full it is renamed to `log.START`, where START is the number of bytes of the
log before it. An offset counts bytes from the first line ever written, so that a reader that lost its connection can go
on where it was even if files were rotated meanwhile. At most KEPT rotated files stay; the oldest are deleted first.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from node.job import files

HEAD = "-"
"""Stands in place of a rank in the launcher's own lines."""
BATCH = 500
"""The most lines in one message to the operator; bounds the memory that this program uses."""
FILE_BYTES = 64 << 20
"""The log file is rotated when it reaches this size."""
KEPT = 4
"""Rotated files that stay. With the current one that is at most 320 MiB for a job."""
_BLOCK = 1 << 16


@dataclass(frozen=True)
class LogFile:
    """One file of the log."""

    path: Path
    start: int
    """Offset of its first byte in the whole log."""
    size: int


def parts(path: Path) -> list[LogFile]:
    """The files of a log, oldest first. The last is `path` itself, the one that is being written."""
    rotated = []
    for file in path.parent.glob(f"{path.name}.*"):
        if (number := file.suffix[1:]).isdigit():
            with suppress(FileNotFoundError):  # deleted meanwhile by a rotation
                rotated.append(LogFile(file, int(number), file.stat().st_size))
    rotated.sort(key=lambda part: part.start)
    start = rotated[-1].start + rotated[-1].size if rotated else 0
    return [*rotated, LogFile(path, start, path.stat().st_size if path.exists() else 0)]


class Log:
    """Writes the log; safe from several threads. While the disk is full, lines are held in memory and written later."""

    def __init__(self, path: Path, node: str, *, file_bytes: int = FILE_BYTES) -> None:
        self._path, self._node, self._file_bytes = path, node, file_bytes
        self._open()
        self._lock = threading.Lock()
        self._kept: list[bytes] = []

    def say(self, text: str) -> None:
        """Write one of the launcher's own lines."""
        self.add(time.time(), self._node, HEAD, text)

    def add(self, when: float, node: str, rank: str, text: str) -> None:
        """Write a line; `when` in seconds of Unix time."""
        with self._lock:
            self._kept.append(f"{when:.3f} {node} {rank} {text}\n".encode())
            try:
                while self._kept:
                    written = os.write(self._file, self._kept[0])
                    rest = self._kept[0][written:]
                    self._kept[:1] = [rest] if rest else []
                self._rotate()
            except OSError:
                return  # the next call tries again

    def flush(self, seconds: float) -> None:
        """Try for up to `seconds` to write the lines that a full disk held up; at a job's end no later call does it."""
        deadline = time.monotonic() + seconds
        while self._kept and time.monotonic() < deadline:
            self.say("lines were late, as the disk was full")
            time.sleep(0.2)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _rotate(self) -> None:
        """Rotate the file if it is large enough. Called only after whole lines."""
        if os.fstat(self._file).st_size < self._file_bytes:
            return
        *before, current = parts(self._path)
        self._path.rename(self._path.with_name(f"{self._path.name}.{current.start}"))
        os.close(self._file)
        self._open()
        for part in before[: max(0, len(before) + 1 - KEPT)]:
            part.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Wanted:
    """Selects the log's lines to show: of one rank (empty: all), from the Unix time `since` on."""

    rank: str
    since: float

    def __call__(self, line: list[str]) -> bool:
        return (not self.rank or line[2] == self.rank) and float(line[0]) >= self.since


def parsed(raw: bytes) -> list[str] | None:
    """[time, node, rank, text] of a line; None if a full disk or a crash has cut it."""
    line = raw.decode(errors="replace").rstrip("\n").split(" ", 3)
    return line if len(line) == 4 and files.TIME.fullmatch(line[0]) else None


def read(path: Path, offset: int, wanted: Callable[[list[str]], bool]) -> tuple[list[list[str]], int]:
    """Up to BATCH wanted whole lines from `offset` on, and the offset after the last line that was read. If the file at
    `offset` has been deleted, reading starts at the oldest one that there is."""
    lines: list[list[str]] = []
    while True:
        there = parts(path)
        offset = max(offset, there[0].start)
        part = next(part for part in reversed(there) if part.start <= offset)
        try:
            file = part.path.open("rb")
        except FileNotFoundError:
            if part is there[-1]:
                return lines, offset  # no line has been written yet
            continue  # rotated out while we looked
        with file:
            if part is there[-1] and parts(path)[-1].start != part.start:
                continue  # rotated while we looked: this may be the next file, which has another offset
            file.seek(offset - part.start)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return lines, offset  # this line is still being written
                offset += len(raw)
                line = parsed(raw)
                lines += [line] if line is not None and wanted(line) else []
                if len(lines) == BATCH:
                    return lines, offset
        if part is there[-1]:
            return lines, offset


def end(path: Path, *, complete_lines: bool = False) -> int:
    """The offset after the last byte of the log, or after its last whole line."""
    last = parts(path)[-1]
    if not complete_lines or not last.size:
        return last.start + last.size
    with last.path.open("rb") as file:
        at = file.seek(max(0, last.size - _BLOCK))
        newline = file.read(last.size - at).rfind(b"\n")
    return last.start + (at + newline + 1 if newline >= 0 else at)


def tail(path: Path, count: int, wanted: Wanted, stop: int = 0) -> int:
    """The offset of the last `count` wanted lines, not before `stop`. Reads backwards, only as far as needed."""
    offset = found = end(path, complete_lines=True)
    seen = 0
    for raw, at in _backwards(path):
        if seen >= count or at < stop:
            return found
        line = parsed(raw)
        if line is None:
            continue
        if float(line[0]) < wanted.since:  # and so are all lines before it
            return found
        if wanted(line):
            seen, found = seen + 1, at
    return found if seen else offset


def _backwards(path: Path) -> Iterator[tuple[bytes, int]]:
    """Every whole line of the log from the last to the first, with its offset; only what is needed is read."""
    for part in reversed(parts(path)):
        if part.size:
            with part.path.open("rb") as file, mmap(file.fileno(), part.size, access=ACCESS_READ) as data:
                stop = data.rfind(b"\n")  # what follows it is still being written
                while stop >= 0:
                    start = data.rfind(b"\n", 0, stop) + 1
                    yield data[start:stop], part.start + start
                    stop = start - 1
