"""Locks (one change of a stack at a time), and how a long operation notices that its caller is gone.

Every create, update and delete holds the lock of the stack's directory shared, as Pulumi runs several at once.
`recover` holds it exclusively, so it never sweeps while a provider of a killed `pulumi up` still works.

Pulumi does not tell a Python dynamic provider that an update was cancelled: Cancel does nothing there, and on Ctrl-C
Pulumi waits for the operation, which for a bake takes minutes. But on Ctrl-C the engine ends the program at once, and
when the engine is killed the provider gets another parent process; this module watches for both. A killed engine does
not end the provider's process either, which would wait for requests forever, so that process ends itself.
"""

from __future__ import annotations

import fcntl
import functools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from infra.errors import OperationError

PROGRAM = "pulumi-language-python-exec"
"""The executable with which Pulumi's language host runs a Python program."""
WRAPPER = "pulumi-resource-pulumi-python"
"""The shell script between Pulumi and the provider's process; it outlives Pulumi."""


class Cancelled(OperationError):
    """The update of this operation was interrupted."""


class LockBusy(OperationError):
    """Another operation holds the stack's lock. `holder`: its process id, or 0 if unknown."""

    def __init__(self, message: str, holder: int) -> None:
        super().__init__(message)
        self.holder = holder


interrupted = threading.Event()
"""Set by the embedded engine on SIGINT and SIGTERM; never under Pulumi."""
_under_way: set[int] = set()
"""The locks that this process holds."""


@contextmanager
def lock(directory: Path, *, exclusive: bool = False, timeout: float = 30.0) -> Iterator[None]:
    """Lock a directory, made if it is missing. The directory itself is locked, so no lock file is left behind.

    `exclusive`: no other operation may hold it, not even shared. Raises LockBusy if the lock is not free within
    `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        handle = _open(directory)
        try:
            if _try_lock(handle, exclusive) and _is_still(directory, handle):
                _under_way.add(handle)
                yield
                return
        finally:
            _under_way.discard(handle)
            os.close(handle)
        if time.monotonic() > deadline:
            holder = _holder(directory)
            who = f"process {holder}" if holder else "another process"
            raise LockBusy(f"{directory}: {who} has been at work on it for {timeout:.0f} s", holder)
        time.sleep(0.05)


def _open(directory: Path) -> int:
    for _ in range(100):
        with suppress(FileNotFoundError):  # another operation has just removed the directory
            directory.mkdir(parents=True, exist_ok=True)
            return os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    raise OperationError(f"{directory}: cannot be made")


def _holder(directory: Path) -> int:
    """Process id of the lock's holder; 0 if it was released meanwhile, or the system has no /proc/locks."""
    try:
        inode = str(directory.stat().st_ino)
        locks = Path("/proc/locks").read_text().splitlines()
    except FileNotFoundError:
        return 0
    for line in locks:
        fields = line.split()  # 1: FLOCK ADVISORY WRITE 4242 fe:00:1540102 0 EOF
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
            return int(fields[4])
    return 0


def _try_lock(handle: int, exclusive: bool) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        return True
    return False


def _is_still(directory: Path, handle: int) -> bool:
    """Whether the locked directory is still the one at that path; it may have been removed and made again."""
    try:
        return directory.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


class CancellationWatch:
    """Stops a long operation whose result is no longer wanted."""

    def __init__(self) -> None:
        self._engine = _engine()
        self._program = _descendant(self._engine, PROGRAM)

    def check(self) -> None:
        """Raise Cancelled if the update was interrupted or its engine is gone."""
        if interrupted.is_set():
            raise Cancelled("interrupted")
        if _engine() != self._engine:
            raise Cancelled("the process that asked for this is gone")
        if self._program is not None and _has_ended(self._program):
            raise Cancelled("the update was cancelled")


@functools.cache
def end_with_engine() -> None:
    """From now on, end this process once its engine is gone and no operation is under way."""
    threading.Thread(target=_outlive, args=(_engine(),), daemon=True).start()


def _outlive(engine: int) -> None:
    while _engine() == engine or _under_way:
        time.sleep(0.2)
    os._exit(1)


def _engine() -> int:
    """Process id of the engine: the parent process, or the one above Pulumi's shell script."""
    pid = os.getppid()
    with suppress(psutil.Error):  # the script has ended meanwhile: its id is then no longer the engine's
        while _runs(script := psutil.Process(pid), WRAPPER):
            pid = int(script.ppid())
    return pid


def _runs(process: psutil.Process, program: str) -> bool:
    """Whether a process has the program's name in its command line."""
    try:
        return program in " ".join(process.cmdline())
    except psutil.Error:
        return False  # it has ended meanwhile, or belongs to another user


def _descendant(root: int, program: str) -> psutil.Process | None:
    """A process below `root` that runs the program; None also if `root` has ended, which itself ends the operation."""
    with suppress(psutil.Error):
        return next((each for each in psutil.Process(root).children(recursive=True) if _runs(each, program)), None)
    return None


def _has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    return True
