"""The state of a working directory: its files, their hashes, and one hash of all."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from invoke.exceptions import Exit

from fabfile import question
from fabfile.output import plural, say
from fabfile.remote.filenames import refusal
from fabfile.workdir import hashes, ignore
from node.workdir import manifest
from node.workdir.manifest import FILE, LINK, PROGRAM, Entry

MOST_FILES = 100_000
LARGE = 1 << 30
"""Bytes above which the user is asked: most often data or checkpoints that should not go along."""
_SHOWN = 3  # folders, or files left out, that are named


@dataclass(frozen=True)
class Snapshot:
    """A working directory as it was when it was scanned."""

    folder: Path
    entries: tuple[Entry, ...]  # sorted by path

    @cached_property
    def manifest(self) -> bytes:
        """The list of its files, as the nodes get it."""
        return manifest.encode(self.entries)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the manifest, in hexadecimal; empty for a directory without files."""
        return manifest.digest(self.manifest) if self.entries else ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.entries)

    @property
    def summary(self) -> str:
        """`working directory: 214 files, 103 MB`"""
        if not self.entries:
            ignored = ", all of its files are ignored" if any(self.folder.iterdir()) else ""
            return f"working directory: {self.folder} has no files to send{ignored}"
        return f"working directory: {plural(len(self.entries), 'file')}, {bytes_text(self.size)}"


def check(folder: Path) -> None:
    """Exit 2 for a working directory that is not there."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "there is no such folder"
        raise Exit(f"working directory {folder}: {what}", code=2)


def scan(folder: Path) -> Snapshot:
    """Read which files a folder has, and hash those that have changed since the last time. Symbolic links stay links.
    Exit 2 for a folder that is not there, a link that leads out of it, or a file that cannot be sent."""
    check(folder)
    folder = folder.absolute()
    names = ignore.chosen(folder)
    if len(names) > MOST_FILES:
        most = f"has {len(names)} files; at most {MOST_FILES} are sent"
        raise Exit(f"{folder}: {most}: leave some out, in .gitignore or {ignore.OWN}", code=2)
    states, links = _states(folder, names)
    try:
        contents = hashes.of_files(folder, states)
    except OSError as error:
        raise Exit(f"{error.filename}: cannot be read: {error.strerror}", code=2) from None
    plain = [Entry(name, _kind(state), state.st_size, contents[name]) for name, state in states.items()]
    return Snapshot(folder, tuple(sorted([*plain, *links], key=lambda one: one.path)))


def confirm(snapshot: Snapshot, *, yes: bool) -> None:
    """Ask before a very large directory is sent, and name its largest folders. Exit 1 for no; Exit 2 where nobody can
    answer."""
    if snapshot.size <= LARGE or yes:
        return
    by_folder: Counter[str] = Counter()
    for one in snapshot.entries:
        by_folder[one.path.split("/")[0]] += one.size
    largest = ", ".join(f"{name} {bytes_text(size)}" for name, size in by_folder.most_common(_SHOWN))
    say(f"{snapshot.summary}: {largest} (left out is what .gitignore or {ignore.OWN} names)")
    question.must_be_answerable(yes)
    question.ask("send all of it?")


def bytes_text(size: int) -> str:
    """`812 bytes`, `12 kB`, `103 MB`, `2.5 GB`: in powers of 1000."""
    if size < 1000:
        return f"{size} bytes"
    for unit in ("kB", "MB"):
        size_in = size / 1000 ** (1 if unit == "kB" else 2)
        if round(size_in) < 1000:
            return f"{size_in:.0f} {unit}"
    return f"{size / 1e9:.1f} GB"


def _states(folder: Path, names: Sequence[str]) -> tuple[dict[str, os.stat_result], list[Entry]]:
    """The state of each plain file, and the links. Sockets and devices are left out, which is said."""
    root = os.path.realpath(folder)
    states: dict[str, os.stat_result] = {}
    links, others = [], []
    for name in names:
        path = folder / name
        try:
            state = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue  # git knows it, and it was removed
        except OSError as error:
            raise Exit(f"{path}: {error.strerror}", code=2) from None
        if why := refusal(name):
            raise Exit(f"{folder}: the name {name!r} {why}: rename it, or leave it out in {ignore.OWN}", code=2)
        if stat.S_ISREG(state.st_mode):
            states[name] = state
        elif stat.S_ISLNK(state.st_mode):
            links.append(Entry(name, LINK, 0, _target(root, path, name)))
        else:
            others.append(name)
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        left = f"not sent, as they are no files: {', '.join(others[:_SHOWN])}{more}"
        say(f"working directory: {left}", file=sys.stderr)
    return states, links


def _target(root: str, path: Path, name: str) -> str:
    """Where a link points to; Exit 2 if that is outside of the working directory, which does not go along."""
    target = os.readlink(path)  # noqa: PTH115 - Path would tidy it
    real = os.path.realpath(path)
    is_inside = real == root or real.startswith(f"{root}{os.sep}")
    if target.startswith("/") or not is_inside:
        where = f"the link {name} leads to {target}, outside of the working directory"
        raise Exit(f"{path.parent}: {where}: nodes would not have it; copy it, or leave it out in {ignore.OWN}", code=2)
    return target


def _kind(state: os.stat_result) -> str:
    return PROGRAM if state.st_mode & stat.S_IXUSR else FILE
