"""On the head: what mpirun needs so that nothing of it survives, and where it may listen. The standard library only.

mpirun leaves survivors: its ranks sit in process groups of their own and outlive it. So each node's part of a job
runs in a systemd scope of one name there: the SSH that mpirun uses is wrapped to make it. systemd kills a scope whole.
"""

from __future__ import annotations

import json
import random
import shlex
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

SSH_OPTIONS = ("BatchMode=yes", "StrictHostKeyChecking=yes", "ControlPath=none", "ConnectTimeout=8", "LogLevel=ERROR")
STRICT = [word for option in SSH_OPTIONS for word in ("-o", option)]
"""For every ssh between nodes. A connection of its own each: a shared one would be lost for all at once."""
_PORTS = range(20000, 32768)
"""Below those that Linux gives to outgoing connections, so that none of these takes the port meanwhile."""


def in_scope(unit: str, properties: Sequence[str]) -> str:
    """Shell that runs what follows it in a scope of this name, as the user who runs the shell."""
    options = " ".join(f"--property={shlex.quote(item)}" for item in (*properties, "KillSignal=SIGKILL"))
    return f'sudo -n systemd-run --quiet --scope --collect --unit={unit} {options} --uid="$(id -u)" --gid="$(id -g)" --'


def ssh_in_scope(folder: Path, unit: str, properties: Sequence[str]) -> Path:
    """The SSH command for mpirun: strict, and what it starts on the other node is in that node's scope."""
    wrapper = folder / "ssh"
    wrapper.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done  # the options that mpirun has for ssh\n'
        "host=$1; shift\n"
        # In single quotes: whose id it is, is asked on the other node.
        f'exec ssh -n -x {shlex.join(STRICT)} "$host" \'{in_scope(unit, properties)}\' "$@"\n'
    )
    wrapper.chmod(0o700)
    return wrapper


def interface(address: str) -> str:
    """The interface that the route to an address goes through."""
    found = subprocess.run(
        ["ip", "-j", "route", "get", address], capture_output=True, text=True, timeout=10, check=True
    )
    return str(json.loads(found.stdout)[0]["dev"])


def free_port(address: str) -> int:
    """A free TCP port at this address."""
    for port in random.sample(_PORTS, 100):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
            try:
                server.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"{address}: none of 100 ports tried is free")
