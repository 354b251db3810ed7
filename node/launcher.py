"""Starts mpirun or torchrun in a systemd scope on the head, or srun in a job of Slurm's, for training and checks."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from fabfile.launchers import SLURM, HeadValues, Launch, nodes_to_text, plans
from node import route, scope

USELESS = "cluster configuration lacks support for cpu binding"
"""What srun says where it could not bind ranks to cores; it is asked not to, as on other clusters it could."""


def start(
    launcher: str,
    launch: Launch,
    folder: Path,
    unit: str,
    properties: Sequence[str],
    *,
    began: float = 0.0,
    output: int | None = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start the launcher and return its process; `output` is Popen's stdout, None: that of this process. On every node
    its processes run in the scope `unit` with these systemd properties, so that none outlives the scope. The hostfile
    and the launcher's SSH command are written into `folder`. `began` as in HeadValues."""
    plan = plans.plan(launcher, launch, values(launch, folder, began))
    if launcher == SLURM:  # it keeps a step's processes together by itself
        return _popen(["sh", "-c", plan.shell], output)
    (folder / "hostfile").write_text(plan.hostfile)
    scope.ssh_in_scope(folder, unit, properties)
    line = f"exec {scope.in_scope(unit, properties)} sh -c {shlex.quote(plan.shell)}"
    return _popen(["sh", "-c", line], output)


def lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The launcher's own lines as they come, but for the empty ones and one that srun repeats to no use."""
    assert process.stdout
    for raw in process.stdout:
        line = raw.decode(errors="replace").strip()
        if line and not line.endswith(USELESS):
            yield line


def values(launch: Launch, folder: Path, began: float, port: int = 0) -> HeadValues:
    """What only this node knows, and a `port` that is free on the job's first node; 0: that is this one."""
    first, last = launch.nodes[0].private_ip, launch.nodes[-1].private_ip
    return HeadValues(
        port=str(port or scope.free_port(first)),
        interface=launch.interface or (route.interface(last) if len(launch.nodes) > 1 else ""),
        began=str(int(began)),
        folder=str(folder),
        nodes=nodes_to_text(launch.nodes),
        master=first,
    )


def _popen(argv: list[str], output: int | None) -> subprocess.Popen[bytes]:
    """In a session of its own: Slurm may signal the process group of this program, and srun hands signals on."""
    inputs, errors = subprocess.DEVNULL, subprocess.STDOUT
    return subprocess.Popen(argv, stdin=inputs, stdout=output, stderr=errors, start_new_session=True)
