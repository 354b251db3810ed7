"""A Linux machine on this host: systemd-nspawn boots the systemd of an overlay root.

`--register=no --keep-unit` needs no systemd on the host itself. The handle of a machine is its control group:
killing systemd-nspawn alone would leave the machine's own init behind, with its link.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.errors import OperationError
from infra.local import cgroup, command

NSPAWN_RUN = Path("/run/systemd/nspawn")
START_TIMEOUT = 10.0


class MachineError(OperationError):
    """A machine that does not start or does not stop: names it and the end of its console."""


@dataclass(frozen=True)
class Machine:
    """One machine and its directory; `stack` and `name` are its control group."""

    stack: str
    name: str
    directory: Path

    @property
    def root(self) -> Path:
        """Its mounted root file system."""
        return self.directory / "root"

    @property
    def console(self) -> Path:
        return self.directory / "console.log"

    @property
    def unique_name(self) -> str:
        """Its name among all machines of this host."""
        return f"{self.stack}-{self.name}"

    @property
    def group(self) -> Path:
        return cgroup.unified(self.stack, self.name)

    def mount(self, layers: Sequence[Path]) -> None:
        """Mount a writable root over `layers`, the uppermost first."""
        for part in ("upper", "work", "root"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        lower = ":".join(str(layer) for layer in layers)
        options = f"lowerdir={lower},upperdir={self.directory / 'upper'},workdir={self.directory / 'work'}"
        command.run(["mount", "-t", "overlay", "overlay", "-o", options, str(self.root)])

    def start(self, options: Sequence[str], *, cpus: int, memory_mb: int, init: Sequence[str] = ()) -> None:
        """Boot it, detached from this process; returns when its init runs.

        `options` are systemd-nspawn's, `init` are arguments to the machine's own init.
        """
        joins = cgroup.make(self.stack, self.name)
        cgroup.limit(self.stack, self.name, cpus=cpus, memory_mb=memory_mb)
        nspawn = [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--link-journal=no"),
            # With a pipe, the machine would have no /dev/console at all, and nobody would hear of a boot that fails.
            *("--console=read-only", "--setenv=TERM=dumb"),
            # What a cloud's machine allows by itself: locked memory for the fabric, and many files.
            *("--rlimit=RLIMIT_MEMLOCK=infinity", "--rlimit=RLIMIT_NOFILE=1048576"),
            *("--boot", f"--machine={self.unique_name}", f"--directory={self.root}", *options, *init),
        ]
        argv = command.in_groups(nspawn, joins)
        with self.console.open("wb") as console:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        self._wait_for_init(process)

    def _wait_for_init(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        # Not the init alone: systemd-nspawn joins its own group a moment later, and until then it looks dead.
        while not self.is_alive():
            if process.poll() is not None or time.monotonic() > deadline:
                raise MachineError(f"{self.name}: its init did not start: {self.console_tail(5) or 'no output'}")
            time.sleep(0.01)

    def is_there(self) -> bool:
        """Whether there is anything of it, dead or alive."""
        return self.directory.exists() or self.group.exists()

    def is_alive(self) -> bool:
        """Whether its init and its supervisor run."""
        return cgroup.is_populated(self.group / "payload") and cgroup.is_populated(self.group / "supervisor")

    def stop(self) -> None:
        """End it at once, whatever runs on it; a machine that does not run is fine."""
        # When its payload is dead systemd-nspawn cleans up after itself; it gets a moment for that.
        cgroup.kill(self.group / "payload", timeout=5.0)
        deadline = time.monotonic() + 2.0
        while cgroup.is_populated(self.group) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not cgroup.kill(self.group, timeout=10.0):
            raise MachineError(f"{self.name}: processes {cgroup.processes(self.stack, self.name)} do not die")
        for remains in (NSPAWN_RUN / "propagate" / self.unique_name, NSPAWN_RUN / "unix-export" / self.unique_name):
            with suppress(FileNotFoundError):
                shutil.rmtree(remains)

    def unmount(self) -> None:
        """Unmount its root; not mounted is fine."""
        while os.path.ismount(self.root):
            lock = _lock_file(self.root)
            command.run(["umount", str(self.root)])
            lock.unlink(missing_ok=True)

    def clear(self) -> None:
        """Stop it and remove everything of it but its directory, which others may be waiting to lock."""
        self.stop()
        cgroup.remove(self.stack, self.name)
        self.unmount()
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def remove(self) -> None:
        """Stop it and remove everything of it: processes, groups, mount, directory."""
        self.clear()
        with suppress(FileNotFoundError):
            self.directory.rmdir()

    def console_tail(self, lines: int) -> str:
        """The last lines of its console, joined to one."""
        try:
            text = self.console.read_text(errors="replace")
        except FileNotFoundError:
            return ""
        said = [line.strip()[:300] for line in text.splitlines() if line.strip()]
        return " / ".join(said[-lines:])


def _lock_file(root: Path) -> Path:
    """The lock that systemd-nspawn keeps for a root, named by its inode; a killed one leaves it behind."""
    status = root.stat()
    return NSPAWN_RUN / "locks" / f"inode-{status.st_dev}:{status.st_ino}"
