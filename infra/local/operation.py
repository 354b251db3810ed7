"""One change of a stack at a time with `recover`, and an end to a long one when nobody wants it any more.

Every create, update and delete holds the lock of the stack's directory shared, as Pulumi runs several at once;
`recover` holds it alone, so that it never sweeps under a provider that a killed `pulumi up` left behind.

Pulumi does not tell a Python dynamic provider that an update was cancelled: Cancel is empty there, and Ctrl-C
waits for the operation to end by itself. A bake would go on for minutes. But on Ctrl-C the engine ends the
program at once, and when the engine is killed the provider gets another parent; both can be seen from here.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = b"pulumi-language-python-exec"
"""The executable that Pulumi's language host runs a Python program with."""


class Cancelled(Exception):
    """The update that this operation belongs to was interrupted."""


class Busy(Exception):
    """The stack's lock is held by another operation."""


interrupted = threading.Event()
"""Set by the embedded engine on SIGINT and SIGTERM; under Pulumi it stays unset."""


@contextmanager
def lock(directory: Path, *, alone: bool = False, timeout: float = 30.0) -> Iterator[None]:
    """Hold the lock of a directory, made if it is not there; the directory is the lock, so nothing is left to clean up.

    Raises Busy when it is not free within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _try_lock(handle, alone) and _is_still(directory, handle):
                yield
                return
        finally:
            os.close(handle)
        if time.monotonic() > deadline:
            raise Busy(f"{directory}: another operation has been at work for {timeout:.0f} s")
        time.sleep(0.05)


def _try_lock(handle: int, alone: bool) -> bool:
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(directory: Path, handle: int) -> bool:
    """Whether the locked directory is the one at that path, not one that was removed in between."""
    try:
        return directory.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


class Watch:
    """Tells a long operation whether anybody still wants its result."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._program = _descendant(self._parent, PROGRAM)

    def check(self) -> None:
        """Raise Cancelled when the update was interrupted or its engine is gone."""
        if interrupted.is_set():
            raise Cancelled("interrupted")
        if os.getppid() != self._parent:
            raise Cancelled("the process that asked for this is gone")
        if self._program is not None and not Path(f"/proc/{self._program}").exists():
            raise Cancelled("the update was cancelled")


def _descendant(root: int, name: bytes) -> int | None:
    """The process below `root` whose command line holds `name`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent_of(entry), []).append(int(entry.name))
    below = list(children.get(root, []))
    while below:
        pid = below.pop()
        below += children.get(pid, [])
        try:
            if name in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except OSError:
            continue  # it ended while we looked
    return None


def _parent_of(entry: Path) -> int:
    try:
        stat = (entry / "stat").read_text()
    except OSError:
        return -1  # it ended while we looked
    return int(stat.rpartition(")")[2].split()[1])
