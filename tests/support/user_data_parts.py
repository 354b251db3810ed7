"""The user data of every kind of machine, and what a test reads in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra import user_data
from infra.config.settings import Settings

IMAGE = "0123456789abcdef"
CLOUDS = ("aws-xeon", "azure-xeon")
"""Folders of what only one kind of cluster gets."""
OVERLAYS = user_data.OVERLAYS
"""Folders of what only one profile gets."""
AWS_LIMIT = 16 * 1024
"""What AWS takes of user data, compressed (TRAPS.md 16)."""


def parts(settings: Settings) -> dict[str, str]:
    """Every user data that there is."""
    return {
        "bake": user_data.for_bake(settings, IMAGE),
        "baked": user_data.for_node(settings, IMAGE, "node1", "head", baked=True),
        "bare": user_data.for_node(settings, IMAGE, "node2", "worker", baked=False),
    }


def written(text: str) -> dict[str, dict[str, Any]]:
    """The files of user data, by path."""
    return {file["path"]: file for file in yaml.safe_load(text)["write_files"]}


def env(text: str) -> dict[str, str]:
    lines = written(text)["/etc/trainyard.env"]["content"].splitlines()
    return dict(line.split("=", 1) for line in lines)


def scripts(*, every: bool = False) -> Iterator[Path]:
    """Those of the local stack, or of every kind of machine; a container image's own are on no machine."""
    for path in user_data.BOOTSTRAP.rglob("*"):
        folder = path.relative_to(user_data.BOOTSTRAP).parts[0]
        other = folder in (*OVERLAYS, user_data.CONTAINER) or (not every and folder in CLOUDS)
        if path.is_file() and path.name != "cloud-config.yaml" and "__pycache__" not in path.parts and not other:
            yield path


def sent(path: Path, bootstrap: Path = user_data.BOOTSTRAP) -> bytes:
    """What a machine gets of a script: all but the lines that are only a comment or a docstring."""
    name = str(path.relative_to(bootstrap))
    (content,) = [
        content
        for cluster in ("local", *CLOUDS)
        for script, content, _ in user_data._scripts(bootstrap, cluster)
        if script == name
    ][:1]
    return content
