"""User and group ids of the local machines: root on a node is user 524288 on the host, which has no rights there.

All machines and images use one range, so that machines can share an image's layers. A base is shifted into the range
once, when it is made; what a bake or a node writes is in the range from the start.
"""

from __future__ import annotations

import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from infra.errors import OperationError

FIRST = 524288
"""The host's id of a node's root; systemd's own containers begin here too."""
COUNT = 65536
RANGE = f"{FIRST}:{COUNT}"
"""The range in the form of systemd-nspawn's --private-users, and in an image's record."""
_CAPABILITY = "security.capability"
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_REVISION_2, _REVISION_3, _REVISION_MASK = 0x02000000, 0x03000000, 0xFF000000


def why_unavailable(proc: Path = Path("/proc")) -> str:
    """Why machines cannot have their own id range here, in one line; empty if they can."""
    for name, kind in (("uid_map", "user"), ("gid_map", "group")):
        path = proc / "self" / name
        if not path.exists():
            return "the kernel has no user namespaces"
        rows = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
        if not any(first <= FIRST and first + count >= FIRST + COUNT for first, _, count in rows):
            have = ", ".join(f"{first} to {first + count - 1}" for first, _, count in rows) or "none"
            remedy = "this is a container: give it more, such as systemd-nspawn's --private-users=0:1048576"
            return f"needs the {kind} ids {FIRST} to {FIRST + COUNT - 1} for its nodes, and there are {have}; {remedy}"
    most = proc / "sys/user/max_user_namespaces"
    if most.exists() and int(most.read_text()) == 0:
        return "user namespaces are switched off; allow them: sysctl user.max_user_namespaces=1000"
    return ""


def shift(root: Path) -> None:
    """Move the owner and group of every file below `root` into the range. Files already in it stay as they are.

    A change of owner clears set-id bits and file capabilities, so they are set again. Access control lists, which
    contain ids too and which no file of a base needs, are removed.
    """
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        if status.st_uid >= FIRST:
            continue  # a hard link to a file that is already done
        if status.st_uid >= COUNT or status.st_gid >= COUNT:
            raise OperationError(
                f"{path}: owner {status.st_uid}:{status.st_gid} is outside of the {COUNT} ids of a machine"
            )
        link = stat.S_ISLNK(status.st_mode)
        capability = None if link else _xattr(path, _CAPABILITY)
        os.chown(path, status.st_uid + FIRST, status.st_gid + FIRST, follow_symlinks=False)
        if link:
            continue
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            path.chmod(stat.S_IMODE(status.st_mode))
        if capability is not None:
            os.setxattr(path, _CAPABILITY, _for_range(capability), follow_symlinks=False)
        for name in _ACLS:
            if _xattr(path, name) is not None:
                os.removexattr(path, name, follow_symlinks=False)


def _xattr(path: Path, name: str) -> bytes | None:
    with suppress(OSError):  # it has none, or the file system does not support them
        return os.getxattr(path, name, follow_symlinks=False)
    return None


def _for_range(capability: bytes) -> bytes:
    """A file's capabilities for the range: version 3 of the format, which names the user namespace's root."""
    (magic,) = struct.unpack_from("<I", capability)
    if magic & _REVISION_MASK not in (_REVISION_2, _REVISION_3):
        raise OperationError(f"file capabilities of an unknown revision: {capability.hex()}")
    flags = magic & ~_REVISION_MASK & 0xFFFFFFFF
    return struct.pack("<I", _REVISION_3 | flags) + capability[4:20] + struct.pack("<I", FIRST)
