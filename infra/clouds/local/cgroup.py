"""Control groups of the local machines: they limit a machine, and kill all its processes at once.

A machine has one group, `trainyard/<stack>/<machine>`. On a host with only the unified hierarchy (v2) that is one
directory. On a hybrid host (v1 controllers beside the unified tree) it is one directory per controller, and processes
are counted and killed through the unified one.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from infra.clouds.local import ids
from infra.errors import OperationError

ROOT = Path("/sys/fs/cgroup")
TOP = "trainyard"
PERIOD_US = 100_000
CONTROLLERS = ("cpu", "memory", "pids")
_LIMITED = ("memory", "cpu", "cpuacct", "pids")
"""Trees of version 1 that every machine joins."""
_OF_CONTAINERS = ("cpuset", "devices", "freezer", "blkio")
"""Those that a machine joins beside them if it runs containers, whose programs expect all of these."""


def is_hybrid() -> bool:
    """Whether the host has v1 controllers beside the unified tree."""
    return (ROOT / "unified" / "cgroup.procs").exists()


def unified(*parts: str) -> Path:
    """A group's directory in the unified tree, through which it is killed and its processes are counted."""
    return (ROOT / "unified" if is_hybrid() else ROOT).joinpath(TOP, *parts)


def _trees(*, containers: bool = True) -> list[Path]:
    """The roots of all hierarchies that a machine's processes join; without `containers` those of a machine that runs
    none."""
    if not is_hybrid():
        return [ROOT]
    named = [ROOT / name for name in ("unified", "systemd", *_LIMITED, *(_OF_CONTAINERS if containers else ()))]
    return [tree for tree in named if (tree / "cgroup.procs").exists()]


def missing() -> list[str]:
    """The controllers that a machine's limits need and this host lacks, as inside a container."""
    if is_hybrid():
        return [name for name in CONTROLLERS if not (ROOT / name / "cgroup.procs").exists()]
    offered = (ROOT / "cgroup.controllers").read_text().split()
    return [name for name in CONTROLLERS if name not in offered]


def make(stack: str, machine: str, part: str = "", *, containers: bool = False) -> list[Path]:
    """Make the machine's groups. Returns the `cgroup.procs` files through which a process joins them.

    With `part`, a process joins that subgroup in the unified tree, where a group may not have both processes and
    subgroups with controllers. With `containers` the machine's root may make groups below its own, in every hierarchy.
    """
    joins = []
    for tree in _trees(containers=containers):
        group = tree / TOP / stack / machine
        _mkdir(group)
        if tree == ROOT / "cpuset":
            _inherit_cpus(group)
        if containers and is_hybrid() and tree.name not in ("unified", "systemd"):  # systemd-nspawn does these two
            _delegate(group)
        if group == unified(stack, machine) and part:
            group /= part
            _mkdir(group)
        joins.append(group / "cgroup.procs")
    if not is_hybrid():
        offered = (ROOT / "cgroup.controllers").read_text().split()
        wanted = [*CONTROLLERS, *(name for name in ("cpuset", "io") if containers and name in offered)]
        for parent in (ROOT, ROOT / TOP, ROOT / TOP / stack):
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
    return joins


def _inherit_cpus(group: Path) -> None:
    """Give a new group of the tree `cpuset` all CPUs and memory nodes of those above it: it begins with none."""
    for below in (group.parent.parent, group.parent, group):
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not (below / name).read_text().strip():
                (below / name).write_text((below.parent / name).read_text())


def _delegate(group: Path) -> None:
    """Let the machine's root make groups below this one and move its own processes there. The limits stay ours."""
    for path in (group, group / "cgroup.procs", group / "tasks"):
        os.chown(path, ids.FIRST, ids.FIRST)


def _mkdir(group: Path) -> None:
    while not group.is_dir():
        with suppress(FileNotFoundError):  # another operation has just removed the empty parent
            group.mkdir(parents=True, exist_ok=True)


def limit(stack: str, machine: str, *, cpus: int, memory_mb: int) -> None:
    """Set the machine's CPUs and memory; also takes effect on a running one."""
    quota, size = cpus * PERIOD_US, memory_mb * 1024 * 1024
    if not is_hybrid():
        group = ROOT / TOP / stack / machine
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (group / "memory.max").write_text(str(size))
        if (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")
        return
    cpu, memory = (ROOT / tree / TOP / stack / machine for tree in ("cpu", "memory"))
    (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (cpu / "cpu.cfs_quota_us").write_text(str(quota))
    _limit_memory_v1(memory, size)


def _limit_memory_v1(group: Path, size: int) -> None:
    """memory.memsw must never be below memory.limit, so the order depends on whether the limit rises or falls."""
    files = [name for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if (group / name).exists()]
    growing = int((group / files[0]).read_text()) < size
    for name in reversed(files) if growing else files:
        (group / name).write_text(str(size))


def processes(stack: str, *machine: str) -> list[int]:
    """All process ids in a group and below it."""
    pids: list[int] = []
    for group in _below(unified(stack, *machine)):
        with suppress(OSError):  # the group was removed meanwhile
            pids += [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    return sorted(pids)


def _below(top: Path) -> list[Path]:
    """A group and those below it; empty if it does not exist. Without those whose path is longer than the system lets
    a path be: a machine's root may nest as many groups as it likes."""
    groups = [top] if top.is_dir() else []
    for group in groups:  # which grows
        with suppress(OSError):  # the group was removed meanwhile, or its path is too long
            groups += [path for path in group.iterdir() if path.is_dir()]
    return groups


def is_populated(group: Path) -> bool:
    """Whether a group, or one below it, has a live process."""
    try:
        return "populated 1" in (group / "cgroup.events").read_text()
    except OSError:
        return False


def kill(group: Path, timeout: float) -> bool:
    """Kill everything in a group and below. Returns whether it was empty within `timeout` seconds."""
    with suppress(FileNotFoundError):
        (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + timeout
    while is_populated(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def end(stack: str, machine: str) -> None:
    """Kill everything in a machine's groups, and remove them. OperationError if a process does not die."""
    kill(unified(stack, machine), timeout=10.0)
    remove(stack, machine)


def groups(stack: str) -> list[Path]:
    """All directories of a stack's groups, in every hierarchy."""
    return [group for tree in _trees() if (group := tree / TOP / stack).is_dir()]


def remove(stack: str, *machine: str) -> None:
    """Remove the groups of a machine, or of a stack. Raises OperationError if one still has a process."""
    for tree in _trees():
        _remove_group(tree.joinpath(TOP, stack, *machine))
        with suppress(OSError):  # other machines have groups, or another operation has removed it
            (tree / TOP / stack).rmdir()
            (tree / TOP).rmdir()


def _remove_group(group: Path) -> None:
    """Remove a group and all below it. Retry, as one can stay busy for a moment after its last process has ended."""
    # Not by Python: groups may be nested deeper than it recurses, and longer than a path may be.
    command = ["find", str(group), "-depth", "-type", "d", "-delete"]
    deadline = time.monotonic() + 5.0
    while group.exists():
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if not group.exists():
            return
        if time.monotonic() > deadline:
            cause = done.stderr.strip().rpartition(": ")[2] or "it was made again"
            raise OperationError(f"{group}: cannot be removed: {cause}")
        time.sleep(0.01)
