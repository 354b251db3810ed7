"""List a job's files on the head, and fetch their content as a tar archive."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fabfile.backends.base import File, Refused
from fabfile.backends.ssh.head import Head
from fabfile.backends.ssh.untar import Stream, extract
from fabfile.output import say
from fabfile.remote import node_program
from node.workdir.changes import LEFT_OUT

_LONGEST_LIST = 32 << 20
_BATCH = 60_000  # most characters of names on one command line; Linux allows 128 KiB in one argument
_QUIET = 120.0  # seconds without a byte after which a transfer is given up
_NOT_FETCHED = ("*.tmp", ".mirror", "heartbeat", "spec.json", "secrets.json")
"""Files that are not fetched: those being written, and those that only the running job needs."""
_WORK = "work"  # a program's working directory: only what the program has changed is fetched
_NO_CHANGES = 99  # exit code if these cannot be listed


class FilesOfNode:
    """The files of jobs whose run directories are in the folder `runs` of a node, or of several: of two files with the
    same name, the first node's."""

    def __init__(self, nodes: Sequence[Head], runs: str) -> None:
        self._nodes, self._runs = nodes, runs

    def files(self, job: str) -> Iterator[tuple[str, File | None]]:
        """See `listed`."""
        seen: set[str] = set()
        for node in self._nodes:
            own = set()
            for name, file in listed(node, f"{self._runs}/{job}"):
                own.add(name)
                if name not in seen:
                    yield name, file
            seen |= own

    def fetch(
        self, job: str, names: Sequence[str], into: Path, limit: int, progress: Callable[[int], None]
    ) -> dict[str, int]:
        """See `take`."""
        taken: dict[str, int] = {}
        for node in self._nodes:
            rest = [name for name in names if name not in taken]
            taken |= take(node, f"{self._runs}/{job}", rest, into, limit - sum(taken.values()), progress)
        return taken


def listed(head: Head, folder: str) -> Iterator[tuple[str, File | None]]:
    """Yield the names in a job's folder, each with its file, or None for a folder; of a program's working directory
    what is new or changed. Raises Refused for other kinds."""
    names = [f"-name {shlex.quote(pattern)}" for pattern in _NOT_FETCHED]
    leave = " -o ".join([*names, f"-path ./{_WORK}", f"-path ./{_WORK}.json", f"-path './.{_WORK}-*'"])
    find = rf"find . -mindepth 1 \( {leave} \) -prune -o -printf '%y %s %T@ %P\0'"
    changes = f"{node_program.copy_command(head.folder, 'workdir-changes', _WORK)} || exit {_NO_CHANGES}"
    command = f"cd {shlex.quote(folder)} || exit; {find}; code=$?; [ ! -d {_WORK} ] || {changes}; exit $code"
    stream = Stream(head.output(command, quiet=_QUIET))
    raw = bytearray()
    while piece := stream.some(1 << 16):
        raw += piece
        if len(raw) > _LONGEST_LIST:
            raise Refused(f"its list of files has more than {_LONGEST_LIST >> 20} MiB")
    result = stream.result()
    if result.exited != 0 and not raw:
        raise Refused(f"its files cannot be listed: {result.why}")
    if result.exited == _NO_CHANGES:
        raise Refused(f"what has changed in its working directory cannot be listed: {result.why}")
    for line in result.stderr.splitlines():
        if line.startswith(LEFT_OUT):
            say(f"{_WORK}: {line}", file=sys.stderr)
    for record in raw.decode(errors="surrogateescape").split("\0")[:-1]:
        yield _entry(record)


def _entry(record: str) -> tuple[str, File | None]:
    """A name and its file; None for a folder."""
    kind, size, modified, name = (*record.split(" ", 3), "", "", "")[:4]
    if kind not in ("f", "d"):
        raise Refused(f"{name!r} is neither a file nor a folder")
    if not re.fullmatch(r"[0-9]{1,19} [0-9]+(\.[^ ]*)?", f"{size} {modified}"):
        raise Refused(f"{name!r} is listed with the size {size!r} and the time {modified!r}")
    return name, File(int(size), int(modified.partition(".")[0])) if kind == "f" else None


def take(
    head: Head, folder: str, names: Sequence[str], into: Path, limit: int, progress: Callable[[int], None]
) -> dict[str, int]:
    """Write these files of a job's folder into the folder `into`; returns name and size of those that still existed.
    Writes at most `limit` bytes; calls `progress` with each number of bytes written. Raises Refused and Unreachable."""
    taken: dict[str, int] = {}
    for batch in _batches(names):
        words = " ".join(shlex.quote(f"./{name}") for name in batch)
        tar = "tar --format=gnu --hard-dereference --no-recursion --ignore-failed-read --warning=none"
        stream = Stream(head.output(f"cd {shlex.quote(folder)} && exec {tar} -c -- {words}", quiet=_QUIET))
        got = extract(stream, frozenset(batch), into, limit, progress)
        limit -= sum(got.values())
        taken |= got
        result = stream.result()
        if result.exited not in (0, 1):  # 1: a file, for example the log, grew while tar read it
            raise Refused(f"tar: {result.why}")
    return taken


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    """Split the names into groups that each fit on a command line."""
    batch: list[str] = []
    length = 0
    for name in names:
        length += len(shlex.quote(f"./{name}").encode()) + 1
        if batch and length > _BATCH:
            yield batch
            batch, length = [], len(shlex.quote(f"./{name}").encode()) + 1
        batch.append(name)
    if batch:
        yield batch
