"""Starts mpirun or torchrun on the head in a systemd scope, for training and for `fab check`."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fabfile.launchers import HeadValues, Launch, plans
from node import scope


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
    first, last = launch.nodes[0].private_ip, launch.nodes[-1].private_ip
    interface = launch.interface or (scope.interface(last) if len(launch.nodes) > 1 else "")
    port = str(scope.free_port(first))
    found = HeadValues(port=port, interface=interface, began=str(int(began)), folder=str(folder))
    plan = plans.plan(launcher, launch, found)
    (folder / "hostfile").write_text(plan.hostfile)
    scope.ssh_in_scope(folder, unit, properties)
    line = f"exec {scope.in_scope(unit, properties)} sh -c {shlex.quote(plan.shell)}"
    return subprocess.Popen(["sh", "-c", line], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
