"""The folder on this machine that has what the nodes of a stack with Slurm share, as a Pulumi resource.

stacks/<stack>/slurm/
    etc          /etc/slurm of every node, read-only there
    fsx          /fsx of every node: one folder for all jobs
    state        slurmctld's queue, written up to 5 s late: a head that is replaced goes on with it, and gives no
                     job id that is in it once more
    munge.key    the stack's key, by which its nodes know each other; written into each node before it boots
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.local import cgroup, ids, paths, rootfs, trees
from infra.state import operation

NAME = "slurm"
"""The resource's name, and the folder's."""
SHARED = "/fsx"
"""Where each node has the shared folder."""
KEY_BYTES = 64
CONFIGURATION = "slurm.conf"
SCRIPTS = {name: (Path(__file__).parent / name).read_text() for name in ("epilog.sh", "step.sh")}
"""What slurm.conf and slurmd's options name, in /etc/slurm."""


def path(stack: str) -> Path:
    """The folder of a stack, whether or not it is there."""
    return paths.stack(stack) / NAME


def remove(stack: str) -> None:
    """Remove the folder with all that the jobs have left in it. A missing one is no error; OperationError if anything
    stays."""
    cgroup.end(stack, NAME)  # a removal that a killed process has begun
    if path(stack).exists():
        (path(stack) / "etc" / CONFIGURATION).unlink(missing_ok=True)  # first: see is_complete
        trees.empty(path(stack), cgroup.make(stack, NAME))
        cgroup.end(stack, NAME)
        path(stack).rmdir()


def is_complete(stack: str) -> bool:
    """Whether the folder is there whole; without the configuration it is not yet made, or removed in part."""
    return (path(stack) / "etc" / CONFIGURATION).exists()


def _write(props: dict[str, Any]) -> None:
    """Make the folder complete; what is there of it stays, but for the configuration."""
    top = path(props["stack"])
    for part in ("etc", "fsx", "state"):
        if not (top / part).exists():
            (top / part).mkdir(parents=True)
            os.chown(top / part, ids.FIRST, ids.FIRST)  # the nodes' root; `state` becomes Slurm's when the head boots
    (top / "fsx").chmod(0o1777)  # as /tmp: every user may write, and remove what is his own
    _write_key(top / "munge.key")
    for name in sorted(SCRIPTS):
        rootfs.write(top, f"etc/{name}", props[name], mode=0o755)
    # The last: on nodes that run, the change of this file restarts Slurm.
    rootfs.write(top, "etc/slurm.conf", props[CONFIGURATION])


def _write_key(file: Path) -> None:
    if file.exists():
        return
    temporary = file.with_suffix(".tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(secrets.token_hex(KEY_BYTES))
    temporary.rename(file)


class SlurmProvider(PlainProvider):
    """Create completes a folder that a killed `up` has left."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Make the folder, or complete it. A key and a queue that are there stay; the configuration is written anew."""
        paths.close()
        with operation.lock(paths.stack(props["stack"])):
            cgroup.end(props["stack"], NAME)  # a removal that a killed process has begun
            _write(props)
        return CreateResult(id_=f"{props['stack']}-{NAME}", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another stack replaces the folder; another configuration or script is written in place."""
        replaces = ["stack"] if olds["stack"] != news["stack"] else []
        changed = [key for key in (CONFIGURATION, *SCRIPTS) if olds.get(key) != news[key]]
        return DiffResult(changes=bool(replaces or changed), replaces=replaces, delete_before_replace=True)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Dropped from the state once slurm.conf is gone: the next `up` completes the folder."""
        there = is_complete(props["stack"])
        return ReadResult(id_=id_ if there else "", outs=props if there else {})

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Write the configuration and the scripts; nodes that run restart Slurm by themselves."""
        with operation.lock(paths.stack(news["stack"])):
            _write(news)
        return UpdateResult(outs={**olds, **news})

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Remove the folder, with the jobs' files in it, then the stack's folder if it is empty."""
        with operation.lock(paths.stack(props["stack"])):
            remove(props["stack"])
        paths.tidy(props["stack"])


class Slurm(Resource, module="local", name="Slurm"):
    """A stack's configuration of Slurm, and its shared folder. The nodes need it before they boot."""

    def __init__(self, *, stack: str, configuration: str, opts: pulumi.ResourceOptions) -> None:
        super().__init__(SlurmProvider(), NAME, {"stack": stack, CONFIGURATION: configuration, **SCRIPTS}, opts)
