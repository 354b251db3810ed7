"""What a user's program needs on its node before it starts: its working directory, and its Python.

Where nodes share a folder, one copy of both is there for all of them.
"""

from __future__ import annotations

from pathlib import Path

from fabfile.launchers import VENV
from fabfile.launchers.program import WORK, Program
from node import requirements
from node.requirements import RequirementsError
from node.workdir import store
from node.workdir.assemble import WorkdirError, assemble

PROBLEMS = (WorkdirError, RequirementsError)
"""Raised by these functions: one line, without the node's name."""


def make_work(program: Program, run_dir: Path, shared_dir: str) -> None:
    """Make the directory that it starts in, unless an earlier attempt has. WorkdirError."""
    there = Path(shared_dir) / ".trainyard" / "work" if shared_dir else store.DEFAULT
    assemble(program.workdir, run_dir / WORK, there)


def python_folder(program: Program, shared_dir: str) -> str:
    """The folder with its `python` and other programs: the image's, or that of its own environment, which is made now
    if it is not there. RequirementsError."""
    if not program.requirements:
        return VENV
    there = Path(shared_dir) / ".trainyard" / "envs" if shared_dir else requirements.DEFAULT
    return str(requirements.ensure(program.requirements, there))
