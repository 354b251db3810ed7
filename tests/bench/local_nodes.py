"""A cluster of local nodes for a bench: ready when the block begins, and gone after it, however it ends."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "acceptance"), str(ROOT / "tests" / "support")]

from project import Project  # noqa: E402


@contextmanager
def ready(nodes: int, cidr: str, **keys: object) -> Iterator[tuple[Project, Path]]:
    """The cluster, made by the embedded engine with these keys of a stack, and a folder for the bench's own files.
    Needs root."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        project = Project(Path(folder) / "trainyard", f"b{os.getpid() % 10000}", "embedded", cidr)
        try:
            project.configure(nodes=nodes, **keys)
            project.fab("up", "--yes", timeout=900)
            project.fab("wait")
            yield project, Path(folder)
        finally:
            project.fab("destroy", "--yes", code=None)
            project.clean()
