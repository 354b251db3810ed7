"""Where the local stacks keep things on this machine.

    /var/lib/trainyard/
        base/<key>/rootfs          a Debian root file system, as mmdebstrap made it, shifted into the machines' ids
        images/<id>/layer          what the bootstrap added to a base; image.json says which, written last
        stacks/<stack>/nodes/...   one directory per machine: spec.json, upper, work, root, console.log
        stacks/<stack>/build/...   the same for a machine that is baking an image

All three are for root alone: files below them belong to the machines' own users, set-id bits included.
Bases and images are a cache that outlives stacks (`fab images`, `fab prune`). What is under stacks/ is gone
after destroy.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def home() -> Path:
    """The directory of everything; TRAINYARD_HOME moves it to another disk."""
    return Path(os.environ.get("TRAINYARD_HOME", "/var/lib/trainyard"))


def close() -> None:
    """Make the directories of everything, each for root alone; also those that an older version left open."""
    for name in ("base", "images", "stacks"):
        (home() / name).mkdir(parents=True, exist_ok=True)
        (home() / name).chmod(0o700)


def base(key: str) -> Path:
    return home() / "base" / key


def images() -> Path:
    return home() / "images"


def stack(name: str) -> Path:
    return home() / "stacks" / name


def node(stack_name: str, name: str) -> Path:
    return stack(stack_name) / "nodes" / name


def build(stack_name: str, image_id: str) -> Path:
    return stack(stack_name) / "build" / image_id


def tidy(stack_name: str) -> None:
    """Remove a stack's directories that nothing is in any more."""
    for directory in (stack(stack_name) / "nodes", stack(stack_name) / "build", stack(stack_name)):
        with suppress(OSError):  # not empty, or not there: whoever empties it tidies it
            directory.rmdir()
