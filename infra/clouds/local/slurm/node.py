"""What a node of a stack with Slurm gets before it boots: the stack's key, and the folders that it shares."""

from __future__ import annotations

import os
from pathlib import Path

from infra.clouds import naming
from infra.clouds.local import ids, rootfs
from infra.clouds.local.nspawn import NspawnMachine
from infra.clouds.local.slurm import configuration, folder
from infra.errors import OperationError

KEY = "etc/munge/munge.key"


def prepare(node: NspawnMachine) -> list[str]:
    """Write the stack's key into the mounted root of a node. Returns the options of systemd-nspawn for its folders."""
    top = folder.path(node.stack)
    users = _users(node.root)
    rootfs.write(node.root, KEY, (top / "munge.key").read_text(), mode=0o400, owner=users["munge"])
    options = [f"--bind-ro={top / 'etc'}:/etc/slurm", f"--bind={top / 'fsx'}:{folder.SHARED}"]
    if node.name == naming.node(0):
        state = top / "state"
        os.chown(state, *(ids.FIRST + number for number in users["slurm"]))
        options.append(f"--bind={state}:{configuration.STATE}")
    return options


def _users(root: Path) -> dict[str, tuple[int, int]]:
    """User and group id of Slurm's users, as the packages have made them in the image."""
    rows = [line.split(":") for line in rootfs.read(root, "etc/passwd").splitlines()]
    found = {row[0]: (int(row[2]), int(row[3])) for row in rows if row[0] in ("munge", "slurm")}
    if len(found) != 2:
        raise OperationError("the image lacks the users munge and slurm: its bake was not complete; run: fab prune")
    return found
