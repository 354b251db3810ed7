"""What root of a local node tries against this machine and against other nodes, whatever runs on the nodes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from on_host import boots, members
from project import Project

from infra.clouds.local import cgroup, ids

# open_by_handle_at from the root of the overlay, of the host's file systems that are mounted in the node, and a module.
_SYSCALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    done = libc.syscall(*args)
    print(name, "refused" if done < 0 else "DONE", os.strerror(ctypes.get_errno()))
handle = (ctypes.c_uint * 4)(8, 1, 2, 0)  # type 1 of 8 bytes: inode 2, the root of an ext4
for place in ("/", "/run/host/incoming", "/dev/null"):
    fd = os.open(place, os.O_RDONLY | os.O_PATH)
    call("handle", 304, fd, handle, os.O_RDONLY)
call("module", 175, b"x" * 64, 64, b"")
call("kexec", 246, 0, 0, 0, 0)
call("clock", 227, 0, (ctypes.c_long * 2)(0, 0))
call("syslog", 103, 3, ctypes.create_string_buffer(4096), 4096)
call("swap", 167, b"/swap", 0)
"""
SETTINGS = {
    "/proc/sys/kernel/core_pattern": "|/tmp/program",
    "/proc/sys/kernel/modprobe": "/tmp/program",
    "/proc/sys/vm/swappiness": "1",
    "/proc/sysrq-trigger": "h",
    "/sys/kernel/uevent_helper": "/tmp/program",
    "/sys/kernel/mm/ksm/run": "1",
}
"""Files of the kernel, and what a node's root writes there."""


_LIMITS = ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max", "pids.max", "devices.allow")


Shell = Callable[[str], str]
"""Runs a script as root of node1; returns what it prints, errors among it."""
OWN_MOUNTS = ("unshare", "--mount", "bash", "-c")
"""Runs a script with the rights of whoever runs it. What it mounts is gone when it ends: without /sys/fs/cgroup, which
a new /sys hides, a node's systemd starts nothing any more."""


def as_root(project: Project, script: str, node: str = "node1") -> str:
    """Run a script as root of a node, by its user's sudo; returns what it prints."""
    done = project.ssh(node, f"sudo {shlex.join(OWN_MOUNTS)} {shlex.quote(script)} 2>&1", code=None)
    return "\n".join(line.removeprefix(f"[{node}] ") for line in done.stdout.splitlines())


def check_all(
    project: Project, shell: Shell, *hidden: Path, folders: tuple[str, ...], read_only: tuple[str, ...]
) -> None:
    """Every check below, on node1. `hidden` are files of other nodes or of this machine; `folders` of the node are
    folders of this machine, and so are those that are `read_only` there."""
    check_processes(project)
    check_disks(shell, "/", *folders)
    check_settings(shell, *SETTINGS)
    check_calls(shell)
    check_limits(project, shell)
    check_out_of_sight(shell, *hidden)
    for folder in read_only:
        remounted = f"mount -o remount,bind,rw {folder}; mount -o remount,rw {folder}"
        output = shell(f"{remounted}; touch {folder}/planted && echo DONE")
        assert "Read-only file system" in output and "DONE" not in output, output


def check_processes(project: Project) -> int:
    """All of node1's, those in containers among them, are users without rights here. Returns its init's number."""
    for pid in members(project.stack, "node1", "payload"):
        try:
            uid, command = Path(f"/proc/{pid}").stat().st_uid, Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked
        assert ids.FIRST <= uid < ids.FIRST + ids.COUNT, command
    init = boots(project.stack)["node1"][0]
    assert Path(f"/proc/{init}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()
    return init


def check_disks(shell: Shell, *folders: str) -> None:
    """None of this machine's can be opened or mounted, and there is nothing to open one by."""
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    major, minor = next(fields[2] for fields in mounts if fields[4] == "/").split(":")
    make = f"mknod $folder/disk b {major} {minor} && head -c 1 $folder/disk | wc -c"
    output = shell(f"for folder in {' '.join(folders)}; do {make} && echo DONE; done; true")
    assert output.count("Operation not permitted") == len(folders) and "DONE" not in output, output
    whats = ("-t devtmpfs none", "-t ext4 /dev/vda", "-t ext4 /dev/sda1", "-o loop /etc/hostname")
    output = shell("; ".join(f"mount {what} /mnt && echo DONE" for what in whats))
    assert "DONE" not in output, output


def check_settings(shell: Shell, *files: str) -> None:
    """Settings of the kernel stay as they are, whatever is mounted anew before."""
    before = _content(files)
    for first in ("true", "mount -o remount,rw /proc/sys; mount -o remount,rw /sys", "mount -t sysfs x /sys"):
        writes = (f"printf %s {shlex.quote(SETTINGS[file])} > {file} && echo DONE {file}" for file in files)
        output = shell(f"{first}; {'; '.join(writes)}")
        assert "DONE" not in output, output
    assert _content(files) == before


def _content(files: Iterable[str]) -> dict[str, str]:
    """Of those that can be read here."""
    return {file: Path(file).read_text() for file in files if not file.endswith("trigger") and Path(file).exists()}


def check_calls(shell: Shell) -> None:
    """System calls for this machine's own root are refused."""
    output = shell(f"python3 -c {shlex.quote(_SYSCALLS)}")
    assert [line.split()[1] for line in output.splitlines()] == ["refused"] * 8, output
    assert "DONE" not in shell("(modprobe dummy || insmod /etc/hostname) && echo DONE")


def check_limits(project: Project, shell: Shell) -> None:
    """The node's own memory, processors, processes and devices are not for its root to set. Those of groups that it has
    made itself are, as for its containers."""
    before = _limits(project)
    assert before
    names = " -o ".join(f"-name {name}" for name in _LIMITS)
    mounts = "for kind in memory cpu devices; do mkdir -p /mnt/$kind; mount -t cgroup -o $kind x /mnt/$kind; done"
    found = f"find /sys/fs/cgroup /mnt -maxdepth 2 {names}"
    shell(f"{mounts}; for f in $({found}); do echo -1 > $f; echo max > $f; done; umount /mnt/*")
    assert _limits(project) == before


def _limits(project: Project) -> dict[Path, str]:
    """Those that this machine has set for node1."""
    files = (group / "node1" / name for group in cgroup.groups(project.stack) for name in _LIMITS)
    return {file: file.read_text() for file in files if file.exists() and file.name != "devices.allow"}


def check_out_of_sight(shell: Shell, *hidden: Path) -> None:
    """These files of this machine cannot be reached, nor can their folders."""
    places = [path for file in hidden for path in (file, file.parent)]
    both = " ".join(f"{path} /proc/1/root{path}" for path in places)
    output = shell(f"for path in {both}; do cat $path || ls $path; done && echo DONE")
    secrets = [line for file in hidden for line in file.read_text().splitlines()[1:2]]
    assert "DONE" not in output and not any(line in output for line in secrets), output
    assert output.count("No such file or directory") == 4 * len(places), output
