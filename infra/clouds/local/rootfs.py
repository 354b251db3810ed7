"""Reads and writes a machine's root file system from the host.

The machine's root may have put links, pipes or devices anywhere in it, and for the host a link's target is a path on
the host. So nothing here follows a link, waits for a pipe, or reads without a limit.
"""

from __future__ import annotations

import fnmatch
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from infra.clouds.local import ids, trees
from infra.errors import OperationError

MOST = 16 * 1024 * 1024
"""Most bytes read of a file; those that we read are far smaller."""


def read(root: Path, name: str) -> str:
    """The text of a file. Raises FileNotFoundError, or OperationError for a link, a device or too large a file."""
    parts = PurePosixPath(name).parts
    with _folder(root, parts[:-1]) as folder:
        handle = _open(parts[-1], os.O_NONBLOCK, folder, str((root / name).parent), "a plain file")
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST:
            os.close(handle)
            raise OperationError(f"{root / name}: not a plain file of at most {MOST} bytes")
        with os.fdopen(handle, "rb") as file:
            return file.read(MOST).decode(errors="replace")


def write(root: Path, name: str, text: str, mode: int = 0o644, owner: tuple[int, int] = (0, 0)) -> None:
    """Write a file into the machine's root; makes folders, replaces whatever was there. `owner`: the machine's own user
    and group id."""
    parts = PurePosixPath(name).parts
    with _folder(root, parts[:-1], make=True) as folder:
        temporary = f".{parts[-1]}.{secrets.token_hex(8)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
                os.fchown(handle, ids.FIRST + owner[0], ids.FIRST + owner[1])
                os.fchmod(handle, mode)
            os.rename(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise


def remove(root: Path, pattern: str) -> None:
    """Remove what matches a pattern such as `home/*/.ssh`, recursively. Of a link only the link goes."""
    with _folder(root, ()) as folder:
        _remove(folder, PurePosixPath(pattern).parts, str(root))


def _remove(folder: int, parts: Sequence[str], where: str) -> None:
    for name in fnmatch.filter(os.listdir(folder), parts[0]):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if len(parts) > 1:
            if stat.S_ISLNK(mode):
                raise OperationError(f"{where}/{name}: is a link, and what is below it cannot be removed")
            if stat.S_ISDIR(mode):
                with _opened(folder, name, where) as below:
                    _remove(below, parts[1:], f"{where}/{name}")
        elif stat.S_ISDIR(mode):
            trees.remove_at(folder, Path(where) / name)
        else:
            os.unlink(name, dir_fd=folder)


@contextmanager
def _folder(root: Path, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder, opened without following links; `make` makes missing folders."""
    if ".." in parts or "/" in parts:
        raise ValueError(f"{'/'.join(parts)}: not a path below a root")
    handle, where = os.open(root, os.O_RDONLY | os.O_DIRECTORY), str(root)
    try:
        for name in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=handle)
                    os.chown(name, ids.FIRST, ids.FIRST, dir_fd=handle, follow_symlinks=False)
            with _opened(handle, name, where) as below:
                handle, below_before = os.dup(below), handle
                os.close(below_before)
            where = f"{where}/{name}"
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _opened(folder: int, name: str, where: str) -> Iterator[int]:
    handle = _open(name, os.O_DIRECTORY, folder, where, "a folder")
    try:
        yield handle
    finally:
        os.close(handle)


def _open(name: str, flags: int, folder: int, where: str, kind: str) -> int:
    """A descriptor for reading. Raises FileNotFoundError, or OperationError for a link or another kind of file."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OperationError(f"{where}/{name}: not {kind}: {error.strerror}") from None
