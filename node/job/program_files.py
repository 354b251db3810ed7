"""What a user's program needs on its node before it starts: its working directory, and its Python.

Where nodes share a folder, one copy of both is there for all of them. Elsewhere each has its own, and most programs
write their checkpoints in the first process alone, but read them in all: so before a program goes on, what it has
written on the first node is brought to the others.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from fabfile.launchers import VENV, Launch
from fabfile.launchers.program import WORK, Program
from node import requirements
from node.job import files
from node.requirements import RequirementsError
from node.scope import STRICT
from node.workdir import store
from node.workdir.assemble import WorkdirError, assemble
from node.workdir.changes import changed

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


def make_shared_work(launch: Launch) -> None:
    """Make a program's working directory where all nodes share it, before the keepers start; else do nothing."""
    if launch.program is not None and launch.shared_dir:
        make_work(launch.program, files.absolute(launch.run_dir), launch.shared_dir)


def written(run_dir: Path) -> tuple[list[str], int]:
    """The files in its directory on this node that it has written, and their size in bytes."""
    found = [(name, size) for name, size, _ in changed(run_dir / WORK, [])]
    return [name for name, _ in found], sum(size for _, size in found)


def copies(launch: Launch, say: Callable[[str], None]) -> list[Copying]:
    """Begin to bring what a program has written on this node to its others, before it goes on there. None where there
    is nothing to bring, or the nodes share it."""
    others = [node.name for node in launch.places[1:] if node.slots]
    if not (launch.program and others and launch.is_again) or launch.shared_dir:
        return []
    run_dir = files.absolute(launch.run_dir)
    names, size = written(run_dir)
    if not names:
        return []
    what = f"{len(names)} file{'s' * (len(names) > 1)}, {size / 1e6:.1f} MB"
    say(f"to {', '.join(others)}: what the program has written: {what}")
    return [Copying(run_dir, names, node) for node in others]


class Copying:
    """What this node's program has written, on its way to another node. There a file that is newer stays."""

    def __init__(self, run_dir: Path, names: Sequence[str], node: str) -> None:
        self.node = node
        work = str(run_dir / WORK)
        take = f"exec tar --extract --keep-newer-files --warning=no-ignore-newer --directory={shlex.quote(work)}"
        pipe = subprocess.PIPE
        # A list in a file that is gone when both have it: a pipe would have to be written to while the other is read.
        listed = os.memfd_create("names")
        os.write(listed, b"".join(os.fsencode(name) + b"\0" for name in names))
        os.lseek(listed, 0, os.SEEK_SET)
        give = ["tar", "--create", f"--directory={work}", "--no-recursion", "--null", "--files-from=-"]
        with os.fdopen(listed, "rb") as names_file:
            self._tar = subprocess.Popen(give, stdin=names_file, stdout=pipe, stderr=subprocess.DEVNULL)
        assert self._tar.stdout
        self._ssh = subprocess.Popen(
            ["ssh", "-x", *STRICT, node, take],
            stdin=self._tar.stdout,
            stdout=subprocess.DEVNULL,
            stderr=pipe,
            text=True,
        )
        self._tar.stdout.close()

    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._ssh.poll() is not None

    def problem(self) -> str:
        """Why it failed; empty if it did not. Once it is over."""
        code, tar = self._ssh.wait(), self._tar.wait()
        assert self._ssh.stderr
        said = self._ssh.stderr.read().strip().splitlines()
        if code == 0 and tar == 0:
            return ""
        return f"{WORK}: not all that the program has written could be copied: {said[-1] if said else 'tar failed'}"

    def end(self) -> None:
        """End it now."""
        for process in (self._tar, self._ssh):
            process.kill()
            process.wait()
