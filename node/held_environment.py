"""Says whether an environment of Python packages on a node may be used (node/requirements.py makes them).

What pip makes has no hash that is known beforehand. An environment is used if its link and folder are this user's, no
other user may write to them, the link leads to one of this folder's environments, and its record has the requirements
that a job asks for; otherwise it is made anew.

Trusted are the jobs of the same user, which can write into it. What runs in it (programs, TensorBoard, a manager on the
head) runs on the node as that user, and can do there no more than these jobs can.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path


def is_complete(link: Path, text: str, image: Path, owner: int) -> bool:
    """Whether the environment for these requirements is there, nobody else can have changed it, and its Python is the
    image's."""
    try:
        target = str(link.readlink())
        if "/" in target or not target.startswith(f"{link.name}-") or link.lstat().st_uid != owner:
            return False

        folder = link.parent / target
        for path in (folder, folder / "bin", folder / "made.json"):
            status = path.lstat()
            is_open = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
            if stat.S_ISLNK(status.st_mode) or status.st_uid != owner or is_open:
                return False
        made = json.loads((folder / "made.json").read_text())
        python = (folder / "bin" / "python").resolve(strict=True)
        return bool(made == {"requirements": text, "image": str(image)} and python == (image / "bin/python").resolve())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links that lead to each other
        return False


def is_anothers(path: Path, owner: int) -> bool:
    """Whether there is something of this name that belongs to another user."""
    return os.path.lexists(path) and path.lstat().st_uid != owner
