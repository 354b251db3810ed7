"""A folder of this machine in the file systems of local nodes: what a bucket is to clusters that share nothing else."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from on_host import members

_OPEN_TREE, _MOVE_MOUNT = 428, 429  # numbers of the system calls, the same on every processor
_CLONE, _FROM_EMPTY_PATH, _HERE = 1, 4, -100  # OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH, AT_FDCWD
_ACL_VERSION, _OWNER, _GROUP, _OTHERS, _ALL, _NO_ID = 2, 1, 4, 0x20, 7, 0xFFFFFFFF  # of access control lists


def open_to_all(folder: Path) -> None:
    """Make a folder in which everybody may write, also in what others put there, as in a bucket: the users of several
    clusters may have different ids."""
    folder.mkdir()
    folder.chmod(0o777)
    entries = [struct.pack("<HHI", who, _ALL, _NO_ID) for who in (_OWNER, _GROUP, _OTHERS)]
    os.setxattr(folder, "system.posix_acl_default", b"".join([struct.pack("<I", _ACL_VERSION), *entries]))


def share(folder: Path, stack: str, node: str, at: str) -> None:
    """Mount `folder` on a node, at a folder that is there, until the node ends."""
    namespace = os.open(f"/proc/{members(stack, node, 'payload')[0]}/ns/mnt", os.O_RDONLY)
    tree = _called(_OPEN_TREE, _HERE, os.fsencode(folder), _CLONE)
    child = os.fork()
    if child == 0:  # a process without other threads, which may enter another mount namespace
        try:
            _called_setns(namespace)
            _called(_MOVE_MOUNT, tree, b"", _HERE, os.fsencode(at), _FROM_EMPTY_PATH)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(tree)
    os.close(namespace)
    assert code == 0, f"{folder} cannot be mounted on {node}: {os.strerror(code)}"


def _called(number: int, *arguments: int | bytes) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _called_setns(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x200) or libc.setns(namespace, 0):  # CLONE_FS: a process may not share its root with another one
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
