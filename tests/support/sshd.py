"""Real OpenSSH servers for tests: ordinary processes on loopback addresses, with keys made for the test."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fabfile.remote.command import OnLine, Result
from fabfile.remote.fleet import Fleet
from infra.inventory import Node, SshCluster

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def require() -> None:
    """Skip, with the reason, where no server can be run."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd on this machine: apt-get install openssh-server")
    if os.geteuid() != 0:
        pytest.skip("not root: sshd could not start sessions as it does on a node")


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def keygen(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> str:
    """Make a key pair; returns the public half without its comment."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", path],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


@dataclass
class Sshd:
    """One running server."""

    folder: Path
    address: str
    port: int
    host_key: str
    process: subprocess.Popen[bytes]

    @property
    def root(self) -> Path:
        """What takes the place of / for the programs that run on this node."""
        return self.folder / "root"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def processes(self) -> list[int]:
        """Its own process, and below it those of its connections: since OpenSSH 9.8 each has several."""

        def below(pid: int) -> list[int]:
            found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
            return [pid, *(each for child in found for each in below(int(child)))]

        return below(self.process.pid)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def refuses(self) -> bool:
        """Whether its port refuses. After its end a process of an earlier connection may still hold its socket."""
        try:
            socket.create_connection((self.address, self.port), 1).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def node(self, name: str, host_key: str | None = None) -> Node:
        return Node(
            name=name,
            private_ip=self.address,
            ssh_port=self.port,
            host_key=self.host_key if host_key is None else host_key,
        )


@dataclass
class Yard:
    """A folder with the operator's key, and the servers that accept it."""

    folder: Path
    servers: list[Sshd]

    @property
    def identity(self) -> Path:
        return self.folder / "identity"

    def start(
        self, address: str, port: int, *, key: str = "ed25519", extra: str = "", environment: Mapping[str, str] = {}
    ) -> Sshd:
        folder = self.folder / f"sshd{len(self.servers)}"
        (folder / "root/opt/trainyard/bootstrap").mkdir(parents=True)  # a machine that was made a node
        host_key = keygen(folder / "host_key", kind=key)
        assignments = " ".join(f"{name}={value}" for name, value in environment.items())
        # SHLVL: not the first shell, or bash reads the tester's own ~/.bashrc. TRAINYARD_PREFIX: the "node's" files.
        (folder / "config").write_text(f"""
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile "{self.identity}.pub"
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
LogLevel DEBUG1
SetEnv SHLVL=2 TRAINYARD_PREFIX={folder}/root {assignments}
Subsystem sftp internal-sftp
{extra}
""")
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd refuses to start as root without it
        process = subprocess.Popen(
            [str(SSHD), "-D", "-f", folder / "config", "-E", folder / "log"], stdin=subprocess.DEVNULL
        )
        server = Sshd(folder, address, port, host_key, process)
        self.servers.append(server)
        self._wait(server)
        return server

    def cluster(self, *nodes: Node, jump_host: str = "", name: str = "yard") -> SshCluster:
        return SshCluster(
            name=name,
            nodes=(replace(nodes[0], role="head"), *nodes[1:]),
            ssh_user=getpass.getuser(),
            identity_file=str(self.identity),
            jump_host=jump_host,
        )

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    @staticmethod
    def _wait(server: Sshd) -> None:
        for _ in range(200):
            try:
                socket.create_connection((server.address, server.port), 1).close()
                return
            except OSError:
                assert server.process.poll() is None, server.log
                time.sleep(0.02)
        raise AssertionError(f"no sshd on {server.address}:{server.port}: {server.log}")


def run_all(
    cluster: SshCluster,
    command: str,
    *,
    nodes: Sequence[str] | None = None,
    timeout: float | None = None,
    on_line: OnLine | None = None,
) -> dict[str, Result]:
    """Run a command over connections of its own; leaving this function, also by Ctrl-C, ends it."""
    chosen = None if nodes is None else [cluster.node(name) for name in nodes]
    with Fleet(cluster) as fleet:
        return fleet.run(command, nodes=chosen, timeout=timeout, on_line=on_line)
