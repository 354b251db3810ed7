"""A tree that a job may make: deeper than Python recurses, longer than a path may be, with names of any bytes."""

from __future__ import annotations

import os
from pathlib import Path

DEPTH = 1100
NAME = b"n" * 60
"""1,100 of these are 66,000 bytes, and a path may have 4,096; Python recurses 1,000 times."""
DEEPEST = b"not UTF-8: \xff\xfe\n"
"""The name of the file in the deepest folder."""


def plant(folder: Path, *, owner: int = -1, outside: Path | None = None) -> None:
    """Make nested folders in a folder, with a file in the deepest; `owner` is a user's and group's id for all of it,
    and in each hundredth folder is a link to `outside`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for level in range(DEPTH):
        os.mkdir(NAME, dir_fd=handle)
        os.chown(NAME, owner, owner, dir_fd=handle)
        if outside is not None and level % 100 == 0:
            os.symlink(outside, "out", dir_fd=handle)
            os.chown("out", owner, owner, dir_fd=handle, follow_symlinks=False)
        below = os.open(NAME, os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(os.open(DEEPEST, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=handle))
    os.chown(DEEPEST, owner, owner, dir_fd=handle)
    os.close(handle)
