"""This node's memory: size, use, and whether it has run out, from the kernel's count of out-of-memory kills.

In a container, a pod's too, limit and count are those of its control group; otherwise the machine's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
LATELY = 20.0
"""Seconds after an out-of-memory kill in which a rank's failure is attributed to it: a rank may fail only after it has
waited for another one that was killed."""
_GIB = 1 << 30
_NO_LIMIT = 1 << 60


class Starved:
    """Detects that the node has run out of memory; `lately` must be called regularly."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._killed = killed(root)
        self._seen = float("-inf")

    def lately(self, now: float) -> bool:
        """Whether the kernel killed a process for lack of memory in the last LATELY seconds before `now`, in seconds of
        a monotonic clock."""
        count = killed(self._root)
        if count > self._killed:
            self._killed, self._seen = count, now
        return now - self._seen < LATELY


def killed(root: Path = ROOT) -> int:
    """How many processes the kernel has killed for lack of memory since the boot; 0 if it does not count them."""
    names = ["sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory/memory.oom_control"]
    return max(_fields(root / name).get("oom_kill", 0) for name in (names if _is_container(root) else ["proc/vmstat"]))


def size(known_gb: float = 0.0, root: Path = ROOT) -> str:
    """How much memory the node may use, such as `2 GiB`: by the kernel, else `known_gb` (GiB); empty: unknown."""
    total = float(_limit(root)) / _GIB or known_gb
    if not total:
        return ""
    return f"{total:.1f}".removesuffix(".0") + " GiB" if total >= 1 else f"{total * 1024:.0f} MiB"


def meminfo(root: Path = ROOT) -> dict[str, int]:
    """The fields of /proc/meminfo in bytes. In a container they are the whole machine's."""
    return {name.rstrip(":"): kib * 1024 for name, kib in _fields(root / "proc/meminfo").items()}


def private() -> int:
    """Bytes of memory private to the processes that are visible here, without what they share with others."""
    pages = 0
    for path in Path("/proc").glob("[0-9]*/statm"):
        with suppress(OSError):  # the process has ended
            _, resident, shared = path.read_text().split()[:3]
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limit(root: Path) -> int:
    """Bytes that the node may use; 0: not known."""
    if not _is_container(root):
        return meminfo(root).get("MemTotal", 0)
    groups = root / "sys/fs/cgroup"
    for path in (groups / "memory.max", groups / "memory/memory.limit_in_bytes"):
        text = _text(path).strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text)
    return 0


def _fields(path: Path) -> dict[str, int]:
    """Name -> value of a file of lines `NAME VALUE`; empty if there is none."""
    return {words[0]: int(words[1]) for words in map(str.split, _text(path).splitlines())}


def _is_container(root: Path) -> bool:
    return (root / "run/systemd/container").exists() or "KUBERNETES_SERVICE_HOST" in os.environ


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # this kernel has no such file, or does not let us read it
