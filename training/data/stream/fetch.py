"""Read files from a source that may fail or stall: a bounded number of attempts, and a record of who waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from training.data.readers import SourceError
from training.data.sources import first_line
from training.data.stream.source import Source, StreamFile
from training.streams import ordered_map

ATTEMPTS = 10
LONGEST_PAUSE = 30.0  # seconds between two attempts; the first pauses are 1, 2, 4, ... s: 181 s for all of them
BLOCK = 4 << 20  # bytes of one read
AT_ONCE, AHEAD = 2, 3  # blocks that are read at a time, and that may wait to be used
_REFUSED = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
_REFUSALS = (401, 403, 404, 410)  # HTTP's: another attempt gets the same


@dataclass
class Waiting:
    """A read that is under way."""

    name: str
    start: int
    began: float = field(default_factory=time.monotonic)
    attempt: int = 1
    reason: str = "no answer"  # why the last attempt failed

    @property
    def seconds(self) -> float:
        """Seconds since the first attempt began."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        return f"{self.name} from byte {self.start}, attempt {self.attempt}: {self.reason}"


class Fetcher:
    """Reads from a source; safe from several threads."""

    def __init__(self, source: Source, *, pause: float = 1.0) -> None:
        """`pause`: seconds between the first two attempts."""
        self.source, self._pause = source, pause
        self._lock = threading.Lock()
        self._under_way: list[Waiting] = []

    def oldest(self) -> Waiting | None:
        """The read that has waited longest; None if none is under way."""
        with self._lock:
            return self._under_way[0] if self._under_way else None

    def blocks(self, file: StreamFile, start: int) -> Iterator[bytes]:
        """The bytes of a file from `start` on, in blocks, some of them read ahead. SourceError."""
        ranges = ((at, min(at + BLOCK, file.size)) for at in range(start, file.size, BLOCK))
        with closing(ordered_map(lambda ends: self.read(file, *ends), ranges, AT_ONCE, AHEAD)) as found:
            yield from found

    def read(self, file: StreamFile, start: int, end: int) -> bytes:
        """Exactly the bytes [start, end) of a file. SourceError if that is refused or fails ATTEMPTS times."""
        waiting = Waiting(file.name, start)
        with self._lock:
            self._under_way.append(waiting)
        try:
            pause = self._pause
            while True:
                data = self._attempt(file, start, end, waiting)
                if data is not None:
                    return data
                if waiting.attempt == ATTEMPTS:
                    raise SourceError(f"{self.source.word}: failed in {waiting.seconds:.0f} s: {waiting}")
                time.sleep(pause)
                waiting.attempt, pause = waiting.attempt + 1, min(2 * pause, LONGEST_PAUSE)
        finally:
            with self._lock:
                self._under_way.remove(waiting)

    def _attempt(self, file: StreamFile, start: int, end: int, waiting: Waiting) -> bytes | None:
        """The bytes; None if another attempt may succeed, with the reason in `waiting`. SourceError if none will."""
        try:
            data = self.source.read(file.name, start, end)
            if len(data) == end - start:
                return data
            waiting.reason = f"{len(data)} of {end - start} bytes came"
        except Exception as error:  # the libraries' exceptions have no common class
            waiting.reason = first_line(error)
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if isinstance(error, _REFUSED) or status in _REFUSALS:
                raise SourceError(f"{self.source.word}: {file.name}: {waiting.reason}") from error
        self._check_size(file)
        return None

    def _check_size(self, file: StreamFile) -> None:
        """SourceError if the file has changed: the place in it would mean another text."""
        try:
            size = self.source.size(file.name)
        except Exception:  # noqa: BLE001 (it is the failing source that was asked; the next attempt will tell)
            return
        if size not in (None, file.size):
            raise SourceError(f"{self.source.word}: {file.name} has {size} bytes; {file.size} when it was prepared")
