"""This node's memory: how much there is and in use, and whether it has run out (the kernel counts what it kills then).

A node that is a container has a limit of its own, and its control group's count; any other has the machine's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
LATELY = 20.0
"""Seconds from the kernel's killing to the ends of ranks that it explains: one may wait for another that was killed."""
_GIB = 1 << 30
_NO_LIMIT = 1 << 60


class Starved:
    """Whether the node has run out of memory lately; asked again and again."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._killed = killed(root)
        self._seen = float("-inf")

    def lately(self, now: float) -> bool:
        """`now` in seconds of any clock that only goes forward."""
        count = killed(self._root)
        if count > self._killed:
            self._killed, self._seen = count, now
        return now - self._seen < LATELY


def killed(root: Path = ROOT) -> int:
    """How many processes the kernel has killed here for want of memory, since the boot; 0 where it does not say."""
    if not _is_container(root):
        return _field(root / "proc/vmstat")
    groups = root / "sys/fs/cgroup"
    return max(_field(groups / "memory.events"), _field(groups / "memory/memory.oom_control"))


def size(known_gb: float = 0.0, root: Path = ROOT) -> str:
    """How much memory the node may use, such as `2 GiB`; where the kernel does not say, `known_gb`; empty: unknown."""
    total = float(_limit(root)) / _GIB or known_gb
    if not total:
        return ""
    return f"{total:.1f}".removesuffix(".0") + " GiB" if total >= 1 else f"{total * 1024:.0f} MiB"


def meminfo(root: Path = ROOT) -> dict[str, int]:
    """/proc/meminfo in bytes, by the kernel's names. In a container it is the machine's."""
    lines = (line.split() for line in _text(root / "proc/meminfo").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def private() -> int:
    """Bytes that the processes seen from here have to themselves; what they share with others is not counted."""
    pages = 0
    for path in Path("/proc").glob("[0-9]*/statm"):
        with suppress(OSError):  # it ended meanwhile
            _, resident, shared = path.read_text().split()[:3]
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limit(root: Path) -> int:
    """Bytes; 0: not known."""
    if not _is_container(root):
        return meminfo(root).get("MemTotal", 0)
    groups = root / "sys/fs/cgroup"
    for path in (groups / "memory.max", groups / "memory/memory.limit_in_bytes"):
        text = _text(path).strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text)
    return 0


def _field(path: Path) -> int:
    """The count of `oom_kill`."""
    lines = (line.split() for line in _text(path).splitlines())
    return next((int(words[1]) for words in lines if words[0] == "oom_kill"), 0)


def _is_container(root: Path) -> bool:
    return (root / "run/systemd/container").exists()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # this kernel has no such file, or does not show it
