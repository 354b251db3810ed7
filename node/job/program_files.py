"""What a user's program needs on its node before it starts: its working directory, and its Python.

Where nodes share a folder, one copy of both is there for all of them. Elsewhere each has its own, and most programs
write their checkpoints in the first process alone, but read them in all: so before a program goes on, what it has
written on the first node is brought to the others.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from fabfile.launchers import SYSTEM_PYTHON, VENV, Launch
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


def give(argv: list[str]) -> int:
    """`workdir-give WORK`: write what a program has written into this directory to stdout, as a tar archive, and to
    stderr how much that is. Returns tar's exit code."""
    work = Path(argv[0])
    found = [(name, size) for name, size, _ in changed(work, [])]
    if found:
        size = sum(size for _, size in found) / 1e6
        print(f"{len(found)} file{'s' * (len(found) > 1)}, {size:.1f} MB", file=sys.stderr)
    tar = ["tar", "--create", f"--directory={work}", "--no-recursion", "--null", "--files-from=-"]
    names = b"".join(os.fsencode(name) + b"\0" for name, _ in found)
    return subprocess.run(tar, input=names, stderr=subprocess.DEVNULL, check=False).returncode


def copies(launch: Launch) -> list[Copying]:
    """Begin to bring what a program has written on its first node, which need not be this one, to its others, before it
    goes on there. None where the nodes share it."""
    others = [node.name for node in launch.places[1:] if node.slots]
    if not (launch.program and others and launch.is_again) or launch.shared_dir:
        return []
    return [Copying(launch, node) for node in others]


class Copying:
    """What a program has written on its first node, on its way to another node. There a file that is newer stays."""

    def __init__(self, launch: Launch, node: str) -> None:
        self.node, self._first = node, launch.nodes[0].name
        work = shlex.quote(str(files.absolute(launch.run_dir) / WORK))
        give = f"exec {SYSTEM_PYTHON} -I {shlex.quote(f'{launch.code}/launch')} workdir-give {work}"
        take = f"exec tar --extract --keep-newer-files --warning=no-ignore-newer --directory={work}"
        self._giver = _over_ssh(self._first, give, subprocess.DEVNULL, subprocess.PIPE)
        self._taker = _over_ssh(node, take, self._giver.stdout, subprocess.DEVNULL)
        assert self._giver.stdout
        self._giver.stdout.close()

    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._taker.poll() is not None

    def problem(self, say: Callable[[str], None]) -> str:
        """Why it failed; empty if it did not, and then `say` is told how much it was. Once it is over."""
        said = {each: _first_line(each) for each in (self._giver, self._taker)}
        if any(each.wait() for each in said):
            why = "; ".join(line for each, line in said.items() if line and each.returncode) or "tar failed"
            return f"{WORK}: not all that the program has written on {self._first} could be copied: {why}"
        if much := said[self._giver]:
            say(f"to {self.node}: what the program has written on {self._first}: {much}")
        return ""

    def end(self) -> None:
        """End it now."""
        for process in (self._giver, self._taker):
            process.kill()
            process.wait()


def _over_ssh(node: str, command: str, source: int | IO[bytes] | None, output: int) -> subprocess.Popen[bytes]:
    argv = ["ssh", "-x", *STRICT, node, command]
    return subprocess.Popen(argv, stdin=source, stdout=output, stderr=subprocess.PIPE)


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """The first line that a process has written to stderr, until its end."""
    assert process.stderr
    lines = process.stderr.read().decode(errors="replace").strip().splitlines()
    return lines[0] if lines else ""
