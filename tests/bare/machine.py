"""A minimal Debian machine on this one: Debian's minbase, what boots it, and apt, make and git.

It is booted by systemd-nspawn as a machine of its own, with all rights, as it boots machines itself: a network of its
own behind this machine's address, its own systemd, a part of the control groups that it may write. Its root is an
overlay that is thrown away; overlays cannot lie on overlays, so /var/lib/trainyard and /tmp are plain directories.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.clouds.local import bake, base_image, cgroup, paths, system_command

CHECKOUT = Path(__file__).resolve().parents[2]
HOME = paths.home() / "bare"
"""The cache: root file systems, pip's packages, each distribution's images. `make bare-clean` removes it."""
STACK = "bare"
RELEASES = {"debian12": "bookworm", "debian13": "trixie"}
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SECURITY = os.environ.get("DEBIAN_SECURITY_MIRROR", "http://deb.debian.org/debian-security")
BOOTS = ("systemd", "systemd-sysv", "udev", "dbus", "iproute2", "ca-certificates")
BARE = ("apt", "make", "git", "sudo")
"""The README's own `apt-get install make git`; sudo is for the run as an ordinary user."""
USER = "newcomer"
PIP_CACHE = "/var/cache/pip-shared"
PULUMI = "/opt/pulumi"
V1 = ("cpu", "cpuacct", "memory", "pids")
BOOT_S = 60.0
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def close_home() -> None:
    """Make the cache, for root alone: it holds root file systems with programs that run as this machine's own root, and
    folders that every user of a machine may write."""
    HOME.mkdir(parents=True, exist_ok=True)
    HOME.chmod(0o700)


@dataclass(frozen=True)
class BareMachine:
    """One machine; `name` is a key of RELEASES."""

    name: str

    @property
    def directory(self) -> Path:
        return HOME / "machines" / self.name

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def link(self) -> str:
        """This machine's end of the link to it."""
        return f"ve-bare-{self.name[-2:]}"

    @property
    def subnet(self) -> str:
        """Its network without the last part: of those that are set aside for tests between machines (RFC 2544)."""
        return f"198.18.{self.name[-2:]}"

    def make_root(self) -> Path:
        """The minimal root file system, from the cache or made now."""
        close_home()
        target = HOME / "roots" / self.name
        if target.is_dir():
            return target
        suite = RELEASES[self.name]
        print(f"{self.name}: making its root file system, once: mmdebstrap {suite}", flush=True)
        work = HOME / "roots" / f"{self.name}.tmp"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        lines = [f"deb {MIRROR} {suite} main", f"deb {MIRROR} {suite}-updates main"]
        (work / "sources.list").write_text("\n".join([*lines, f"deb {SECURITY} {suite}-security main", ""]))
        argv = [
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join((*BOOTS, *BARE))}"),
            *(f"--aptopt={line}" for line in base_image.apt_options()),
            *(suite, str(work / "root"), str(work / "sources.list")),
        ]
        system_command.run_watched(argv, cgroup.make(STACK, self.name), work, timeout=900, check=lambda: None)
        # As an installed Debian has it, not as mmdebstrap calls its argument.
        shutil.move(work / "sources.list", work / "root/etc/apt/sources.list")
        for file in (work / "root/etc/apt/sources.list.d").glob("0000*"):
            file.unlink()
        system_command.run(["chroot", str(work / "root"), "useradd", "--create-home", "--shell=/bin/bash", USER])
        (work / "root/etc/sudoers.d/newcomer").write_text(f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n")
        (work / "root").rename(target)
        shutil.rmtree(work)
        return target

    def start(self) -> None:
        """Boot it with a fresh root, with a clone of this checkout's last commit for root and for the user."""
        root = self.make_root()
        self.stop()
        for part in ("upper", "work", "root", "tmp"):
            (self.directory / part).mkdir(parents=True)
        (self.directory / "tmp").chmod(0o1777)
        layers = f"lowerdir={root},upperdir={self.directory / 'upper'},workdir={self.directory / 'work'}"
        system_command.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(self.root)])
        self._furnish()
        self._boot()
        self._connect()
        if cgroup.is_hybrid():  # systemd-nspawn mounts these read-only; on a real machine root writes them
            for tree in ("", *V1):
                self._enter(["mount", "-o", "remount,bind,rw", f"/sys/fs/cgroup/{tree}"])

    def _furnish(self) -> None:
        """The clones, and what a bake borrows from its host as well: name servers, authorities, pip's settings."""
        for home in ("root", f"home/{USER}"):
            system_command.run(["git", "clone", "--quiet", f"file://{CHECKOUT}", str(self.root / home / "trainyard")])
        system_command.run(["chroot", str(self.root), "chown", "-R", f"{USER}:", f"/home/{USER}"])
        uplink = Path("/run/systemd/resolve/resolv.conf")
        servers = (uplink if uplink.exists() else Path("/etc/resolv.conf")).read_text()
        (self.root / "etc/resolv.conf").unlink(missing_ok=True)
        (self.root / "etc/resolv.conf").write_text(servers)
        (self.root / "etc/hostname").write_text(f"{self.name}\n")
        (self.root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        for path in bake.HOST_FILES:
            if Path(path).is_file():
                shutil.copyfile(path, self.root / path[1:])
        borrowed = {key: value for key, value in os.environ.items() if key.startswith(bake.INHERITED)}
        borrowed["PIP_CACHE_DIR"] = PIP_CACHE
        lines = [f"export {key}='{value}'\n" for key, value in sorted(borrowed.items())]
        (self.root / "etc/profile.d/host.sh").write_text("".join(lines))

    def _boot(self) -> None:
        state, pip = HOME / "state" / self.name, HOME / "pip"
        for directory in (state, pip):
            directory.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(state / "stacks", ignore_errors=True)  # of a run that was killed; the images stay
        system_command.run(["chmod", "-R", "a+rwX", str(pip)])  # root's and the user's
        nspawn = [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--link-journal=no", "--boot"),
            *("--console=read-only", "--setenv=TERM=dumb", "--capability=all", "--resolv-conf=off", "--timezone=off"),
            *("--rlimit=RLIMIT_MEMLOCK=infinity", "--rlimit=RLIMIT_NOFILE=1048576"),
            *(f"--machine=bare-{self.name[-2:]}", f"--hostname={self.name}", f"--directory={self.root}"),
            *("--network-veth", f"--bind={state}:/var/lib/trainyard", f"--bind={pip}:{PIP_CACHE}"),
            *(f"--bind={self.directory / 'tmp'}:/tmp", "systemd.mask=systemd-networkd.service"),
        ]
        # Its installer may be out of reach in there. Beside the PATH, so that a bare machine has none.
        if command := shutil.which("pulumi"):
            programs = Path(command).resolve().parent.glob("pulumi*")
            nspawn[-1:-1] = [f"--bind-ro={path}:{PULUMI}/{path.name}" for path in programs]
        with (self.directory / "console.log").open("wb") as console:
            subprocess.Popen(
                system_command.in_groups(nspawn, cgroup.make(STACK, self.name)),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        deadline = time.monotonic() + BOOT_S
        while self._is_system_running() not in ("running", "degraded"):
            if time.monotonic() > deadline:
                tail = (self.directory / "console.log").read_text(errors="replace").splitlines()[-5:]
                raise system_command.SystemCommandError(
                    f"{self.name}: not booted within {BOOT_S:.0f} s: {' / '.join(tail)}"
                )
            time.sleep(0.2)

    def _init(self) -> int | None:
        """The process id, here, of its init; None before it is there."""
        group = cgroup.unified(STACK, self.name) / "payload"
        for path in (group / "init.scope", group):
            with suppress(OSError):
                if pids := (path / "cgroup.procs").read_text().split():
                    return int(pids[0])
        return None

    def _is_system_running(self) -> str:
        try:
            return self._enter(["systemctl", "is-system-running"], check=False)
        except system_command.SystemCommandError:
            return ""

    def _enter(self, argv: Sequence[str], *, check: bool = True) -> str:
        """Run a command in its namespaces; its output."""
        init = self._init()
        if init is None:
            raise system_command.SystemCommandError(f"{self.name}: does not run")
        command = ["nsenter", f"--target={init}", "--all", *argv]
        if check:
            return system_command.run(command).strip()
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()

    def _connect(self) -> None:
        """A link of its own, and what it sends leaves under this machine's address."""
        system_command.run(["ip", "address", "add", f"{self.subnet}.1/24", "dev", self.link])
        system_command.run(["ip", "link", "set", self.link, "up"])
        self._enter(["ip", "address", "add", f"{self.subnet}.2/24", "dev", "host0"])
        self._enter(["ip", "link", "set", "host0", "up"])
        self._enter(["ip", "route", "add", "default", "via", f"{self.subnet}.1"])
        rules = f"""table ip {self._table} {{
            chain out {{ type nat hook postrouting priority 100; ip saddr {self.subnet}.0/24 masquerade; }}
        }}"""
        subprocess.run(["nft", "--file", "-"], input=rules, text=True, check=True, timeout=60)
        (self.directory / "ip_forward").write_text(FORWARD.read_text())
        FORWARD.write_text("1")

    @property
    def _table(self) -> str:
        return f"trainyard-{self.name}"

    def run(self, line: str, log: Path, *, user: str, each: float, on_progress: Callable[[], None]) -> int:
        """Run a line in a login shell, in the clone, as a service of the machine; its exit code. Output goes to `log`.

        `on_progress` is called every `each` seconds.
        """
        home = "/root" if user == "root" else f"/home/{user}"
        argv = [
            *(
                "nsenter",
                f"--target={self._init()}",
                "--all",
                "systemd-run",
                "--quiet",
                "--pipe",
                "--wait",
                "--collect",
            ),
            *(f"--uid={user}", f"--setenv=HOME={home}", f"--working-directory={home}/trainyard"),
            *("--service-type=exec", "bash", "-lc", line),
        ]
        with log.open("wb") as file, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as ran:
            try:
                while True:
                    try:
                        return ran.wait(each)
                    except subprocess.TimeoutExpired:
                        on_progress()
            finally:
                ran.terminate()  # interrupted: what it runs ends with the machine

    def stop(self) -> None:
        """End it, whatever runs in it, and remove everything of it but the cache."""
        if not cgroup.kill(cgroup.unified(STACK, self.name), timeout=20):
            raise system_command.SystemCommandError(f"{self.name}: its processes do not die")
        cgroup.remove(STACK, self.name)
        subprocess.run(["nft", "delete", "table", "ip", self._table], capture_output=True, timeout=60, check=False)
        with suppress(FileNotFoundError):
            FORWARD.write_text((self.directory / "ip_forward").read_text())
        while os.path.ismount(self.root):
            system_command.run(["umount", str(self.root)])
        if self.directory.is_dir():
            shutil.rmtree(self.directory)
