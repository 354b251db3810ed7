"""Walks through folders and removes them, however deep and with whatever names a job has nested them.

`os.walk` and `shutil.rmtree` recurse, and nested folders may be deeper than Python does. Their paths may be longer than
the system lets a path be, so a walk goes from folder to folder by descriptors; and it holds one of these at a time, as
a process may have few. No link is followed.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(slots=True)
class Folder:
    """A folder on the way through a tree."""

    name: str
    identity: tuple[int, int]
    """Its device and inode."""
    ahead: list[str]
    """The names of the folders in it to which the walk has yet to go, the next one last; to change that, change it."""


@dataclass(slots=True)
class Visit:
    """A moment of a walk: it has come to a folder, or back from it into the one above. For this moment only."""

    way: list[Folder]
    """The folders from the top to this one."""
    handle: int
    """The descriptor of this folder; if it `is_over`, of the one above."""
    others: list[str]
    """The names of what is in it and is no folder, sorted; links to folders too. Empty if it `is_over`."""
    is_over: bool = False

    @property
    def folder(self) -> Folder:
        """This folder."""
        return self.way[-1]

    def path_of(self, *names: str) -> str:
        """The path of what is in it, below the top."""
        return "/".join([*(folder.name for folder in self.way[1:]), *names])


def walk(top: Path, errors: list[OSError]) -> Iterator[Visit]:
    """Visit a folder and all below it: each when the walk comes to it, and all but the top when the walk leaves it.

    The error of a folder that cannot be opened is added to `errors`, with its path below the top, and the walk goes on.
    OSError if that is the top,
    or if a folder is moved while the walk is below it.
    """
    handle = os.open(top, _FOLDER)
    try:
        folder, others = _read("", handle)
        way = [folder]
        yield Visit(way, handle, others)
        while way:
            if way[-1].ahead:
                name = way[-1].ahead.pop()
                try:
                    below = os.open(name, _FOLDER, dir_fd=handle)
                except OSError as error:
                    error.filename = "/".join([*(folder.name for folder in way[1:]), name])
                    errors.append(error)
                    continue
                os.close(handle)
                handle = below
                folder, others = _read(name, handle)
                way.append(folder)
                yield Visit(way, handle, others)
            else:
                if len(way) > 1:
                    above = _open_above(handle, way[-2])
                    os.close(handle)
                    handle = above
                    yield Visit(way, handle, [], is_over=True)
                way.pop()
    finally:
        os.close(handle)


def _read(name: str, handle: int) -> tuple[Folder, list[str]]:
    """An open folder, and the names of what is in it and is no folder."""
    status = os.fstat(handle)
    folders = []
    others = []
    with os.scandir(handle) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                others.append(entry.name)
    return Folder(name, (status.st_dev, status.st_ino), sorted(folders, reverse=True)), sorted(others)


def _open_above(handle: int, above: Folder) -> int:
    """The descriptor of the folder above an open one. OSError if it is no longer the one that the walk came from."""
    opened = os.open("..", _FOLDER, dir_fd=handle)
    status = os.fstat(opened)
    if (status.st_dev, status.st_ino) != above.identity:
        os.close(opened)
        raise OSError(errno.ESTALE, "a folder was moved meanwhile", above.name)
    return opened


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all below it on its file system. A missing one is no error.

    What cannot be removed stays, and then the first error is raised: OSError.
    """
    try:
        is_folder = path.is_dir() and not path.is_symlink()
        if not is_folder:
            path.unlink(missing_ok=True)
            return
        errors: list[OSError] = []
        for visit in walk(path, errors):
            _remove_part(visit, errors)
        # Nothing is lost where somebody else was faster.
        errors = [error for error in errors if not isinstance(error, FileNotFoundError)]
        if not errors:
            path.rmdir()
    except FileNotFoundError:
        return
    if errors:
        raise errors[0]


def _remove_part(visit: Visit, errors: list[OSError]) -> None:
    """Remove a folder that a walk has left, or what is no folder in one that it has come to."""
    try:
        if visit.is_over:
            os.rmdir(visit.folder.name, dir_fd=visit.handle)
        elif visit.folder.identity[0] != visit.way[0].identity[0]:
            visit.folder.ahead.clear()
            raise OSError(errno.EXDEV, "is on another file system", visit.folder.name)
    except OSError as error:
        errors.append(error)
        return

    for name in visit.others:
        try:
            os.unlink(name, dir_fd=visit.handle)
        except OSError as error:
            errors.append(error)


@contextmanager
def temporary(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder, in `parent` or where the system has such, that is removed after the body with all in it."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield path
    finally:
        remove(path)
