"""Removes folders that a machine's users have written into, whatever they have put there.

They may have nested folders deeper than Python recurses and longer than a path may be, with names of any bytes, and
links to anywhere. So `find` removes them, which goes from folder to folder by descriptors and follows no link; and it
does so in a user namespace of the machines' ids, in which root is the machines' root: no file of this host's own can
be changed from there.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from infra.clouds.local import ids, system_command
from infra.errors import OperationError

_TOOLS = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""The whole environment: `find` runs nothing in the folder itself with a PATH that may have a relative entry."""
_EMPTY = """
find . -xdev -mindepth 1 -type d -perm -1000 -execdir chmod -- -t {} +
exec find . -xdev -mindepth 1 -delete
"""
"""Removes all in the current folder, on this file system. In a sticky folder of a user's the machine's root may not
remove the marks that overlayfs leaves for removed files: they belong to the host's root. So no folder stays sticky."""

_HAND_OVER = f"""
exec find . -xdev -mindepth 1 -type d \\( -uid -{ids.FIRST} -o -uid +{ids.FIRST + ids.COUNT - 1} \\) \\
  -execdir chown -h {ids.FIRST}:{ids.FIRST} -- {{}} +
"""
"""Gives the machine's root each folder that it may not remove from: this host's root may have put text for the jobs
there. Nothing is removed with the rights of the host's root, and no link is followed."""


def remove(path: Path) -> None:
    """Remove a folder of this host's root as `empty` does, and the folder too. A missing folder is no error."""
    if path.exists():
        empty(path)
        path.rmdir()


def empty(path: Path, joins: Sequence[Path] = ()) -> None:
    """Remove all in a folder of this host's root, also what machines have in the folders directly below it.

    `joins`: `cgroup.procs` files of the control groups in which that runs; whoever kills those ends it. OperationError
    if anything stays.
    """
    for child in sorted(path.iterdir()):
        status = child.lstat()
        if stat.S_ISDIR(status.st_mode) and _is_machines(status):
            _empty_as_machine(child, str(child), joins)

    # What is left is this host's own; the machines' folders in it are empty.
    _empty_as_host(path, str(path), joins)


def remove_at(folder: int, path: Path) -> None:
    """Remove the last folder of a path, in the open folder above it. OperationError if anything of it stays."""
    handle = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        place = f"/proc/{os.getpid()}/fd/{handle}"
        if _is_machines(os.fstat(handle)):
            _empty_as_machine(path, place)
        else:  # nobody but this host's root has written there
            _empty_as_host(path, place)
    finally:
        os.close(handle)
    os.rmdir(path.name, dir_fd=folder)


def _is_machines(status: os.stat_result) -> bool:
    return ids.FIRST <= status.st_uid < ids.FIRST + ids.COUNT


def _empty_as_host(path: Path, place: str, joins: Sequence[Path] = ()) -> None:
    _run_there(["sh", "-euc", _EMPTY], path, place, joins)


def _empty_as_machine(path: Path, place: str, joins: Sequence[Path] = ()) -> None:
    """Remove all in a machine's folder, with the rights of the machine's root."""
    _run_there(["sh", "-euc", _HAND_OVER], path, place, joins)
    with _user_namespace() as namespace:
        enter = ["nsenter", f"--user={namespace}", "--setuid=0", "--setgid=0", "--"]
        _run_there([*enter, "sh", "-euc", _EMPTY], path, place, joins)


def _run_there(argv: Sequence[str], path: Path, place: str, joins: Sequence[Path]) -> None:
    """Run a command that helps to empty a folder: `path` is its name for errors, `place` where it is opened."""
    name = f"{path}: cannot be emptied"
    system_command.run(system_command.in_groups(argv, joins), name=name, timeout=None, cwd=place, env=_TOOLS)


@contextmanager
def _user_namespace() -> Iterator[str]:
    """The file of a user namespace with the machines' ids; a process that waits holds it until the end of the body."""
    hold = ["unshare", "--user", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_TOOLS) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        if not holder.stdout.readline():
            raise OperationError(f"unshare: no user namespace: {ids.why_unavailable() or 'it printed nothing'}")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{kind}").write_text(f"0 {ids.FIRST} {ids.COUNT}\n")
        yield f"/proc/{holder.pid}/ns/user"
