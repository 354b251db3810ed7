"""What this machine itself knows of a stack, looked up without the code that is tested: processes, control groups,
mounts, links, namespaces, files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from project import Project

from infra.clouds.local import cgroup, paths

RUN = Path("/run/systemd/nspawn")
NAMESPACES = ("net", "mnt", "pid", "uts", "ipc", "cgroup", "user")


def processes(project: Project, *words: str) -> list[int]:
    """Processes that the project's verbs started, directly or not, whose command line holds all of `words`.

    What runs on a node is not among them, as its environment is its own; the node's systemd-nspawn is.
    """
    ours, found = f"PYTHONPATH={project.root}".encode(), []
    for pid in _all_processes():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if ours in environment and command and all(word in command for word in words):
            found.append(pid)
    return found


def groups(stack: str) -> list[Path]:
    """The stack's control groups, and those of its machines, in every hierarchy."""
    root = Path("/sys/fs/cgroup")
    return [group for tree in (root, *root.iterdir()) if (group := tree / "trainyard" / stack).is_dir()]


def members(stack: str, machine: str = "", below: str = "") -> list[int]:
    """The processes in the control groups of a stack, or of one of its machines, or of a part of that."""
    # os.walk bears groups that go away while it looks.
    tops = [group / machine / below for group in groups(stack)]
    files = [Path(path) / "cgroup.procs" for top in tops for path, _, _ in os.walk(top)]
    return sorted({int(pid) for file in files for pid in _lines(file)})


def cut_power(stack: str, machine: str) -> None:
    """Kill all of a machine's processes at once. The end of its first one ends the others: they may be gone by then."""
    for pid in members(stack, machine, "payload"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def boots(stack: str) -> dict[str, tuple[int, int]]:
    """Machine -> (process id, start time) of its init: another pair is another boot."""
    names = {path.name for group in groups(stack) for path in group.iterdir() if path.is_dir()}
    found: dict[str, tuple[int, int]] = {}
    for name in sorted(names):
        for pid in members(stack, name, "payload"):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
            except OSError:
                continue  # it ended while we looked
            inside = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
            if len(inside) == 2 and inside[1] == "1":
                assert name not in found, f"two inits of {name}: {found[name]} and {pid}"
                found[name] = (pid, start)
    return found


def _locks(mounts: Iterable[str]) -> set[Path]:
    """systemd-nspawn's locks of machines' roots, each a line of mountinfo."""
    found = set()
    for root in (line.split()[4] for line in mounts):
        try:
            status = Path(root).stat()
        except OSError:
            continue  # unmounted while we looked
        found.add(RUN / "locks" / f"inode-{status.st_dev}:{status.st_ino}")
    return found


def _is_another(pid: int, stack: str) -> bool:
    """Whether a process belongs to a machine of another stack."""
    try:
        groups_of = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False  # it ended while we looked
    return f"/{cgroup.TOP}/" in groups_of and f"/{cgroup.TOP}/{stack}/" not in groups_of


@dataclass
class Traces:
    """What was seen of a stack while it was there, to look for afterwards."""

    project: Project
    namespaces: set[str] = field(default_factory=set)
    locks: set[Path] = field(default_factory=set)

    def note(self) -> None:
        """Remember the namespaces and systemd-nspawn's locks of what runs now."""
        own = set(_namespaces("self"))
        for pid in members(self.project.stack):
            self.namespaces |= set(_namespaces(str(pid))) - own
        self.locks |= _locks(line for line in _mounts() if f"/stacks/{self.project.stack}/" in line)

    def remaining(self) -> list[str]:
        """Everything of the stack that is still there."""
        stack, home = self.project.stack, self.project.home
        known = home / ".trainyard"  # its workdirs is about the operator's own files
        # The kernel gives the numbers of what is gone to what comes next: another stack's machine is not ours.
        living = {name for pid in _all_processes() if not _is_another(pid, stack) for name in _namespaces(str(pid))}
        others = _locks(line for line in _mounts() if "/stacks/" in line and f"/stacks/{stack}/" not in line)
        files = [
            *([paths.stack(stack)] if paths.stack(stack).exists() else []),
            *(file for kind in ("propagate", "unix-export") for file in (RUN / kind).glob(f"{stack}-*")),
            *(lock for lock in self.locks - others if lock.exists()),
            *(file for file in known.rglob("*") if file.is_file() and known / "workdirs" not in file.parents),
            *(home / ".trainyard" / "engine").glob("*"),
            *(home / "state" / ".pulumi" / "locks").rglob("*.json"),
        ]
        return [
            *(f"process {pid}" for pid in processes(self.project)),
            *(f"process {pid} in a control group" for pid in members(stack)),
            *(f"control group {group}" for group in groups(stack)),
            *(f"mount {line.split()[4]}" for line in _mounts() if f"/stacks/{stack}/" in line),
            *(f"link {name}" for name in _links(stack)),
            *(f"namespace {name}" for name in sorted(self.namespaces & living)),
            *(f"file {file}" for file in files),
        ]

    def check_nothing_is_left(self) -> None:
        """The kernel takes a moment to end a network namespace with its link, and Pulumi's helpers to notice."""
        deadline = time.monotonic() + 20
        while (found := self.remaining()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == []


def _all_processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _namespaces(pid: str) -> list[str]:
    try:
        return [str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in NAMESPACES]
    except OSError:
        return []  # it ended while we looked


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def _links(stack: str) -> list[str]:
    """Links with the stack's mark, and the host's ends of its machines' links."""
    found = []
    for link in json.loads(subprocess.check_output(["ip", "-json", "link", "show"], text=True)):
        names = [link["ifname"], *link.get("altnames", [])]
        if link.get("ifalias") == f"trainyard:{stack}" or any(name.startswith(f"vb-{stack}-") for name in names):
            found.append(link["ifname"])
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []  # the group went away while we looked


def engines() -> list[Any]:
    """For a test that runs on each engine: where there is pulumi, `make faults` runs it on the embedded one, and
    continuous integration does not."""
    second = [pytest.mark.acceptance, pytest.mark.soak] if shutil.which("pulumi") else []
    return ["pulumi", pytest.param("embedded", marks=second)]


def why_not(engine: str) -> str:
    """Why the real thing cannot run here; empty when it can."""
    if os.geteuid() != 0:
        return "booting machines needs root"
    for tool in ("systemd-nspawn", "mmdebstrap", "apt-get"):
        if shutil.which(tool) is None:
            return f"there is no {tool} on this machine"
    if engine == "pulumi" and shutil.which("pulumi") is None:
        return "there is no pulumi command on this machine (its installer's host is out of reach?)"
    return ""
