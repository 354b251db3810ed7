"""Where the local stacks keep their files on this machine.

    /var/lib/trainyard/
        base/<key>/rootfs          a Debian root file system from mmdebstrap, shifted into the machines' ids
        images/<id>/layer          what the bootstrap added to a base, or a scheduler's packages to an image; image.json
                                   describes it, and is written last
        kubernetes/<key>/          Kubernetes' programs and container images (kubernetes/programs.py)
        stacks/<stack>/nodes/...   one directory per machine: spec.json, upper, work, root, console.log
        stacks/<stack>/build/...   the same for a machine that is baking an image
        stacks/<stack>/slurm/...   what nodes with Slurm share: configuration, key, /fsx
        stacks/<stack>/kubernetes/...   likewise with Kubernetes: certificates, its objects, /fsx
    /var/cache/trainyard/pulumi/
        <key>/                     Pulumi's command, where it had to be built (pulumi_build/build.py), for all users
        bin                        a link to the one that was built last

All in /var/lib/trainyard are accessible to root only, and so is the folder itself: the files in them belong to the
machines' users, and some are set-id. Bases and images are a cache that outlives stacks (`fab images`, `fab prune`).
What is under stacks/ is deleted by destroy.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PARTS = ("base", "images", "kubernetes", "stacks")


def home() -> Path:
    """The top directory; TRAINYARD_HOME moves it to another disk."""
    return Path(os.environ.get("TRAINYARD_HOME", "/var/lib/trainyard"))


def close() -> None:
    """Make the directories, accessible to root only; also corrects those that an older version left open.

    The top one is closed before there is anything in it. One that TRAINYARD_HOME names stays open if other files are
    there as well: it may be a disk's own folder, which others use.
    """
    top = home()
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    own_names = {*PARTS, "bare", "pulumi"}
    if "TRAINYARD_HOME" not in os.environ or {path.name for path in top.iterdir()} <= own_names:
        top.chmod(0o700)
    for name in PARTS:
        (top / name).mkdir(mode=0o700, exist_ok=True)
        (top / name).chmod(0o700)


def base(key: str) -> Path:
    """The folder of the base with this key."""
    return home() / "base" / key


def images() -> Path:
    """The folder of all images."""
    return home() / "images"


def kubernetes() -> Path:
    """The folder of Kubernetes' programs, of all versions."""
    return home() / "kubernetes"


def pulumi() -> Path:
    """The folder of Pulumi's command as it was built on this machine, of all versions.

    Not in the top directory, which is root's alone: stacks in a cloud are made by other users, too. TRAINYARD_HOME
    moves it as well.
    """
    if "TRAINYARD_HOME" in os.environ:
        return home() / "pulumi"
    return Path("/var/cache/trainyard/pulumi")


def stack(name: str) -> Path:
    """The folder of a stack."""
    return home() / "stacks" / name


def node(stack_name: str, name: str) -> Path:
    """The folder of a node's machine."""
    return stack(stack_name) / "nodes" / name


def build(stack_name: str, image_id: str) -> Path:
    """The folder of a machine that bakes this image for a stack."""
    return stack(stack_name) / "build" / image_id


def tidy(stack_name: str) -> None:
    """Remove a stack's empty directories."""
    for directory in (stack(stack_name) / "nodes", stack(stack_name) / "build", stack(stack_name)):
        with suppress(OSError):  # not empty, or already removed by another operation
            directory.rmdir()
