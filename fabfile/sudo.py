"""Give folders that root has made in a user's home back to the user: sudo may keep the user's HOME."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fabfile.stacks import pulumi_cli


@contextmanager
def given_back() -> Iterator[None]:
    """After the body, even if it fails, give the user of sudo all that root owns in ~/.trainyard, ~/.pulumi and the
    checkout's .pulumi.

    Does nothing if HOME is not the user's: sudo may have set it to root's.
    """
    try:
        yield
    finally:
        user = _user()
        home = Path.home()
        if user is not None and home.stat().st_uid == user[0]:
            for folder in (home / ".trainyard", home / ".pulumi", pulumi_cli.ROOT / ".pulumi"):
                give(folder, *user)


def give(folder: Path, uid: int, gid: int) -> None:
    """Give a folder and all in it that root owns to a user. Follows no link, which could lead to root's own files."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for _, folders, files, here in os.fwalk(folder, follow_symlinks=False):
            for name in (".", *folders, *files):
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                    if status.st_uid == 0 and (stat.S_ISDIR(status.st_mode) or status.st_nlink == 1):
                        os.chown(name, uid, gid, dir_fd=here, follow_symlinks=False)


def _user() -> tuple[int, int] | None:
    """The ids of the user who called sudo; None for root itself, and without sudo."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not uid.isdecimal() or not gid.isdecimal() or int(uid) == 0:
        return None
    return int(uid), int(gid)
