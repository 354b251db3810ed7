"""A Linux machine on this host: systemd-nspawn boots systemd in an overlay root.

`--register=no --keep-unit` needs no systemd on the host. A machine is stopped through its control group: killing
systemd-nspawn alone would leave the machine's init and its network link behind. keep.sh, in that group, boots the
machine again when it reboots.

The machine's root is a user without rights on the host (ids.py): it cannot make device files, open disks, load modules
or change kernel settings, and sees no other machine's files.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.clouds.local import cgroup, ids, system_command, trees
from infra.errors import OperationError

NSPAWN_RUN = Path("/run/systemd/nspawn")
START_TIMEOUT = 10.0
KEEPER = "keeper"
"""The part of a machine's control group in which keep.sh runs."""
KEEPER_SCRIPT = (Path(__file__).parent / "keep.sh").read_text()
CONFINED = (
    *(f"--private-users={ids.RANGE}", "--private-users-ownership=off"),
    *("--register=no", "--keep-unit", "--quiet"),
)
"""systemd-nspawn's options for every command in a machine's root. No id shift: the layers are already shifted."""
PLAIN = ("--drop-capability=CAP_MKNOD",)
"""For machines that run no containers. Only the host's own root can make devices; this says so beside the kernel."""
CONTAINERS = ("--system-call-filter=@keyring", "--system-call-filter=bpf")
"""For machines that run containers. runc gives each a keyring, and starts them with the right to make devices, which
counts for nothing in a user namespace."""
_APART = """
mount -o "remount,bind,suid,$2" "$1/root"
for kind in proc sysfs; do
    mount -t $kind $kind "$1/$kind" || echo "trainyard: this container lets no machine in it have a $kind of its own"
done
shift 2
exec "$@"
"""
"""Runs a command in its own mount namespace. There, set-id programs of the machine's root work; outside they must not,
or a host user could run them. And it mounts a complete /proc and /sys: a container hides parts of its own, and the
kernel then refuses to mount them in any user namespace below."""
_TAIL_BYTES = 65536


@dataclass(frozen=True)
class NspawnMachine:
    """A machine and its directory; `stack` and `name` determine its control group."""

    stack: str
    name: str
    directory: Path

    @property
    def root(self) -> Path:
        """Its mounted root file system."""
        return self.directory / "root"

    @property
    def console(self) -> Path:
        """The file with what it writes on its console: the last 16 MiB or so, as keep.sh cuts it."""
        return self.directory / "console.log"

    @property
    def spec(self) -> Path:
        """The file with what it was made from."""
        return self.directory / "spec.json"

    @property
    def unique_name(self) -> str:
        """Its name, unique on this host."""
        return f"{self.stack}-{self.name}"

    @property
    def group(self) -> Path:
        """Its control group in the unified tree."""
        return cgroup.unified(self.stack, self.name)

    def mount(self, layers: Sequence[Path]) -> None:
        """Mount a writable root over `layers`, the uppermost first."""
        for part in ("upper", "work", "root", "proc", "sysfs"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        os.chown(self.directory / "upper", ids.FIRST, ids.FIRST)  # the machine's / itself
        (self.directory / "upper").chmod(0o755)
        lower = ":".join(str(layer) for layer in layers)
        options = f"lowerdir={lower},upperdir={self.directory / 'upper'},workdir={self.directory / 'work'}"
        # nosuid,nodev: on the host, a machine's files must not give anybody another user's rights, or a device.
        system_command.run(["mount", "-t", "overlay", "overlay", "-o", f"nosuid,nodev,{options}", str(self.root)])

    def run_inside(self, argv: Sequence[str]) -> str:
        """Run a command in the mounted root of a stopped machine; returns its output."""
        command = self.inside(argv, ["--private-network"])
        return system_command.run(system_command.in_groups(command, cgroup.make(self.stack, self.name)))

    def inside(self, argv: Sequence[str], options: Sequence[str]) -> list[str]:
        """The command that runs `argv` in the mounted root of a stopped machine; `options` are for systemd-nspawn."""
        return self._apart(["systemd-nspawn", *CONFINED, *PLAIN, "--pipe", f"--directory={self.root}", *options, *argv])

    def _apart(self, argv: Sequence[str], *, containers: bool = False) -> list[str]:
        space = ["unshare", "--mount", "--propagation=slave"]
        # A container gets folders of its machine read-only. From a root that is `nodev` runc 1.1 may not mount them so,
        # in a user namespace; and there nobody could make a device.
        devices = "dev" if containers else "nodev"
        return [*space, "sh", "-euc", _APART, "sh", str(self.directory), devices, *argv]

    def start(
        self,
        options: Sequence[str],
        *,
        cpus: int,
        memory_mb: int,
        init: Sequence[str] = (),
        containers: bool = False,
    ) -> None:
        """Boot it, detached from this process; returns when its init runs.

        `options` are for systemd-nspawn, `init` are arguments for the machine's init; with `containers` it runs some.
        """
        joins = cgroup.make(self.stack, self.name, KEEPER, containers=containers)
        cgroup.limit(self.stack, self.name, cpus=cpus, memory_mb=memory_mb)
        nspawn = [
            *("systemd-nspawn", *CONFINED, *(CONTAINERS if containers else PLAIN), "--link-journal=no"),
            # read-only: with a pipe, the machine would have no /dev/console, and a failed boot would show nothing.
            *("--console=read-only", "--setenv=TERM=dumb"),
            # Limits as on a cloud's machine: locked memory for the fabric, and many open files.
            *("--rlimit=RLIMIT_MEMLOCK=infinity", "--rlimit=RLIMIT_NOFILE=1048576"),
            # The machine's root lacks the right to lower nice values; allow down to -20, for its own processes.
            "--rlimit=RLIMIT_NICE=40",
            *("--boot", f"--machine={self.unique_name}", f"--directory={self.root}", *options, *init),
        ]
        keeps = (self.group, self.console)
        argv = system_command.in_groups(
            self._apart(["sh", "-euc", KEEPER_SCRIPT, "keep.sh", *map(str, keeps), *nspawn], containers=containers),
            joins,
        )
        self.console.unlink(missing_ok=True)
        with self.console.open("ab") as console:  # or what follows a cut would be written where it would have been
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True, cwd="/"
            )
        deadline = time.monotonic() + START_TIMEOUT
        # Wait for both: systemd-nspawn joins its own group a moment after init, and until then looks dead.
        while not self._has_booted():
            if process.poll() is not None or time.monotonic() > deadline:
                raise OperationError(f"{self.name}: its init did not start: {self.console_tail(5) or 'no output'}")
            time.sleep(0.01)

    def is_there(self) -> bool:
        """Whether anything of it exists, running or not."""
        return self.directory.exists() or self.group.exists()

    def is_complete(self) -> bool:
        """Whether it runs, or has all that it had when it ran; otherwise its directory is what a removal has left."""
        return self.spec.exists() or self.is_alive()

    def is_alive(self) -> bool:
        """Whether it runs, or is about to boot again by itself."""
        return self._has_booted() or cgroup.is_populated(self.group / KEEPER)

    def _has_booted(self) -> bool:
        """Whether its init and its systemd-nspawn run."""
        return cgroup.is_populated(self.group / "payload") and cgroup.is_populated(self.group / "supervisor")

    def stop(self) -> None:
        """Kill all processes of the machine. A machine that does not run is no error."""
        cgroup.kill(self.group / KEEPER, timeout=5.0)  # keep.sh first, or it would boot the machine again
        # When its payload is dead, systemd-nspawn cleans up; give it a moment.
        cgroup.kill(self.group / "payload", timeout=5.0)
        deadline = time.monotonic() + 2.0
        while cgroup.is_populated(self.group) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not cgroup.kill(self.group, timeout=10.0):
            raise OperationError(f"{self.name}: processes {cgroup.processes(self.stack, self.name)} do not die")
        for remains in (NSPAWN_RUN / "propagate" / self.unique_name, NSPAWN_RUN / "unix-export" / self.unique_name):
            # systemd 257 mounts something there, and leaves it if it is killed before it has cleaned up.
            while os.path.ismount(remains):
                system_command.run(["umount", str(remains)])
            trees.remove(remains)
        self._remove_link()

    def _remove_link(self) -> None:
        """Remove its network link on this host, if it is still there: a connection that was open when the machine was
        killed may keep its network, and with it the link, for minutes, in which the machine could not be made again."""
        name = f"vb-{self.unique_name}"  # as systemd-nspawn names it; if that is too long, an alternative of the link's
        there = json.loads(system_command.run(["ip", "-json", "link", "show"]))
        for link in there:
            if name in (link["ifname"], *link.get("altnames", ())):
                with suppress(system_command.SystemCommandError):  # the kernel has just done it
                    system_command.run(["ip", "link", "delete", link["ifname"]])

    def unmount(self) -> None:
        """Unmount its root. An unmounted one is no error."""
        while os.path.ismount(self.root):
            # systemd-nspawn keeps a lock file for a root, named by its inode; a killed one leaves it behind.
            status = self.root.stat()
            system_command.run(["umount", str(self.root)])
            (NSPAWN_RUN / "locks" / f"inode-{status.st_dev}:{status.st_ino}").unlink(missing_ok=True)

    def clear(self) -> None:
        """Stop it and remove everything but its directory, which others may be waiting to lock. OperationError if
        anything else stays."""
        self.stop()
        cgroup.remove(self.stack, self.name)
        self.unmount()
        self.spec.unlink(missing_ok=True)  # first: see is_complete
        if self.directory.exists():
            # In the machine's group: if this process is killed, `stop` ends the removal before a new machine is made.
            trees.empty(self.directory, cgroup.make(self.stack, self.name))
            cgroup.remove(self.stack, self.name)

    def remove(self) -> None:
        """Stop it and remove everything: processes, groups, mount, directory."""
        self.clear()
        with suppress(FileNotFoundError):
            self.directory.rmdir()

    def console_tail(self, lines: int) -> str:
        """The last lines of its console, joined to one, without control characters."""
        try:
            with self.console.open("rb") as file:
                file.seek(max(0, self.console.stat().st_size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return ""
        shown = ["".join(c if c.isprintable() else " " for c in line).strip()[:300] for line in text.splitlines()]
        return " / ".join([line for line in shown if line][-lines:])
