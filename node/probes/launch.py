"""On the head node: one program on every node by mpirun, over strict SSH, within a time and without survivors.

Runs inside a systemd scope of its own. Reads one line of JSON from stdin,

    {"unit": ..., "hosts": [...], "toward": ip, "interface": "", "seconds": 60, "program": [...], "network_test": {...}}

passes the program's output through, and ends with `{"event": "end", "exited": code, "late": bool}`.

mpirun leaves survivors: its ranks sit in process groups of their own and outlive it. So each node's part of
the job runs in a scope named `unit` there (the SSH that mpirun uses is wrapped to make one), which systemd
kills whole: when the operator says so, and by itself after `seconds` if nobody is left to say it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from node import scope

VENV = Path("/opt/trainyard/venv/bin")
RUNTIME = Path("/etc/trainyard/runtime.env")

Spec = dict[str, Any]


def main() -> None:
    spec: Spec = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory(prefix="trainyard-check-") as folder:
        mpirun = subprocess.Popen(
            ["sh", "-c", command(spec, Path(folder))], stdin=subprocess.DEVNULL, start_new_session=True
        )
        threading.Thread(target=end_with_stdin, args=(mpirun,), daemon=True).start()
        late = False
        try:
            mpirun.wait(timeout=spec["seconds"])
        except subprocess.TimeoutExpired:
            late = True
            end(mpirun)
    print(json.dumps({"event": "end", "exited": mpirun.returncode, "late": late}), flush=True)


def end_with_stdin(mpirun: subprocess.Popen[bytes]) -> None:
    """The operator is gone, or has seen enough."""
    while os.read(0, 4096):
        pass
    end(mpirun)


def end(mpirun: subprocess.Popen[bytes]) -> None:
    if mpirun.poll() is None:
        os.killpg(mpirun.pid, signal.SIGKILL)
        mpirun.wait()


def command(spec: Spec, folder: Path) -> str:
    """The shell line that starts mpirun in the environment of the ranks."""
    hosts = folder / "hostfile"
    hosts.write_text("".join(f"{host}\n" for host in spec["hosts"]))
    environment = {
        "PATH": f"{VENV}:/usr/local/bin:/usr/bin:/bin",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(ssh_in_scope(spec, folder)),
        # The wrapper is on the head alone, so the head starts every node itself instead of a tree of nodes.
        "I_MPI_HYDRA_BRANCH_COUNT": str(max(16, len(spec["hosts"]))),
        "I_MPI_JOB_TIMEOUT": str(spec["seconds"]),
    }
    if len(spec["hosts"]) > 1:
        environment["I_MPI_HYDRA_IFACE"] = spec["interface"] or scope.interface(spec["toward"])
    program = list(spec["program"])
    if spec["network_test"]:
        program.append(
            json.dumps({**spec["network_test"], "port": scope.free_port(spec["network_test"]["addresses"][0])})
        )
    count = str(len(spec["hosts"]))
    mpirun = ["mpirun", "-n", count, "-ppn", "1", "-hostfile", str(hosts), *program]
    exports = " ".join(f"{key}={shlex.quote(value)}" for key, value in environment.items())
    # The file first, then what this test needs to be so: PATH is the only thing that both set.
    return f"set -a; [ ! -f {RUNTIME} ] || . {RUNTIME}; {exports}; set +a; exec {shlex.join(mpirun)}"


def ssh_in_scope(spec: Spec, folder: Path) -> Path:
    """The SSH command for mpirun; the scope ends by itself soon after the job should have."""
    return scope.ssh_in_scope(folder, spec["unit"], [f"RuntimeMaxSec={spec['seconds'] + 5}"])


if __name__ == "__main__":
    main()
