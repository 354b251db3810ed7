"""Runs mpirun's processes in systemd scopes so that none survives, and finds a port for them. Runs on the head.

mpirun's ranks have process groups of their own and can outlive it. So on each node a job's processes run in a systemd
scope, which systemd kills whole; a wrapper around mpirun's SSH command makes that scope. Imports only the standard
library.
"""

from __future__ import annotations

import random
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

CONNECT_S = 8
"""Seconds that an ssh between nodes has to connect, key exchange included."""
_OPTIONS = ("BatchMode=yes", "StrictHostKeyChecking=yes", "ControlPath=none", "LogLevel=ERROR")
STRICT = [word for option in (*_OPTIONS, f"ConnectTimeout={CONNECT_S}") for word in ("-o", option)]
"""Options of every ssh between nodes. ControlPath=none: if a shared connection broke, all its users would lose it."""
ALIVE = ["-o", "ServerAliveInterval=5"]
"""More of them: end within 20 s if the other node says nothing any more, as nothing else notices that it is gone."""
PORTS = range(20000, 32768)
"""Below Linux's range for outgoing connections, so that none of these takes a chosen port before mpirun does."""


def in_scope(unit: str, properties: Sequence[str]) -> str:
    """A shell command prefix that runs what follows it in a scope of this name, as the user who runs the shell."""
    options = " ".join(f"--property={shlex.quote(item)}" for item in (*properties, "KillSignal=SIGKILL"))
    return f'sudo -n systemd-run --quiet --scope --collect --unit={unit} {options} --uid="$(id -u)" --gid="$(id -g)" --'


def ssh_in_scope(folder: Path, unit: str, properties: Sequence[str]) -> Path:
    """Write the SSH command for mpirun into `folder` and return its path. It checks host keys strictly and runs its
    command in a scope on the other node."""
    wrapper = folder / "ssh"
    wrapper.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done  # the options that mpirun has for ssh\n'
        "host=$1; shift\n"
        # In single quotes, so that $(id -u) is evaluated on the other node.
        f'exec ssh -n -x {shlex.join(STRICT)} "$host" \'{in_scope(unit, properties)}\' "$@"\n'
    )
    wrapper.chmod(0o700)
    return wrapper


def free_port(address: str) -> int:
    """A TCP port that is free at this address of this node; OSError if none of 100 is."""
    for port in random.sample(PORTS, 100):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
            try:
                server.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"{address}: none of 100 ports tried is free")
