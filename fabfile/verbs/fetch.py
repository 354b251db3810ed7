"""`fab fetch`: a job's checkpoints, metrics and logs, to this machine.

The head is not believed: its list is checked before a byte is taken, and nothing else than what the list names is
written (fabfile/backends/ssh/untar.py). All of it goes to a folder of its own first, and is put in its place when it
is whole.
"""

from __future__ import annotations

import filecmp
import json
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.backends.ssh.head import Head, runs, state
from fabfile.backends.ssh.untar import Refused, Stream, extract
from fabfile.output import gigabytes, interruptible, next_command, say
from fabfile.remote.filenames import refusal
from fabfile.remote.fleet import Fleet
from fabfile.targets import load

MOST_FILES = 100_000
_LONGEST_LIST = 32 << 20
_SMALL = 1 << 20
"""A file of fewer bytes is fetched again even when its size and time are those of ours: that is cheap, and sure."""
_GROWTH = 1 << 30
"""Bytes that logs and metrics may grow by between the list and the fetch."""
_SPARE = 256 << 20
"""Bytes that must stay free on this disk."""
_BATCH = 60_000
"""Characters of names on one command line; Linux takes 128 KiB in one argument."""
_PROGRESS_SECONDS = 10.0
_QUIET = 120.0
"""Seconds without a byte after which it is given up."""
_LEFT_OUT = ("*.tmp", ".mirror", "heartbeat", "spec.json", "secrets.json")


@dataclass(frozen=True)
class File:
    """A file of the job's, as the head lists it."""

    size: int
    modified: int


@task(
    help={
        "job": "the job: its id, its number, or latest",
        "to": "folder for it; default: runs/ID here; one that has the job already is updated",
        "stack": "the stack",
        "inventory": "an inventory file instead of a stack",
    }
)
def fetch(_c: Context, job: str, to: str = "", stack: str = "", inventory: str = "") -> None:
    """Fetch a job's checkpoints, best model, metrics and logs from the head. Repeated, it fetches what is new."""
    cluster = load(stack, inventory)
    if to:
        _check_target(Path(to).expanduser())
    with interruptible(), Fleet(cluster) as fleet:
        head = Head(fleet)
        found = state(head, job)
        job = found["id"]
        target = Path(to or f"runs/{job}").expanduser()
        _check_target(target)
        _check_same(target, found)
        try:
            _fetch(head, job, target)
        except (Refused, paramiko.SSHException, EOFError, OSError) as error:
            raise Exit(f"{head.node.name}: {job} was not fetched: {error}", code=1) from None
    say(next_command(f"fab sample {job} --prompt ..."))


def _check_target(target: Path) -> None:
    """Before a connection is made: it is a folder, or can become one."""
    for folder in (target, *target.parents):
        if folder.exists():
            if not folder.is_dir():
                raise Exit(f"--to {target}: {folder} is a file; name a folder", code=2)
            return


def _check_same(target: Path, job: dict[str, Any]) -> None:
    """A folder with something in it must have this very run: names are given again on another cluster."""
    if not target.exists() or not any(target.iterdir()):
        return
    other = Exit(f"{target}: has something else than {job['id']} in it; name another folder with --to", code=2)
    try:
        there = json.loads((target / "state.json").read_text())
        same = there["id"] == job["id"] and there["started"] in (None, job["started"])
    except (OSError, ValueError, KeyError, TypeError):
        raise other from None
    if not same:
        raise other


def _fetch(head: Head, job: str, target: Path) -> None:
    folder = f"{runs(head.cluster)}/{job}"
    listed = _listed(head, folder)
    there = _there(target, listed)
    wanted = {name: file for name, file in listed.items() if file.size < _SMALL or there.get(name) != file}
    announced = sum(file.size for file in wanted.values())
    beside = target if target.exists() else target.parent  # on the same disk in any case
    beside.mkdir(parents=True, exist_ok=True)
    room = max(0, shutil.disk_usage(beside).free - _SPARE)
    if announced > room:
        raise Refused(f"it has {gigabytes(announced / 2**30)}, {beside} has room for {gigabytes(room / 2**30)}")
    temporary = Path(tempfile.mkdtemp(dir=beside, prefix=".fetch-"))
    try:
        taken = _take(head, folder, wanted, temporary, min(announced + _GROWTH, room))
        new = _put(temporary, target, taken)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for name in sorted(set(wanted) - set(taken)):
        say(f"{name}: was gone before it was read")
    size = sum(listed[name].size for name in listed if name not in taken) + sum(taken.values())
    kept = f", {len(new)} of {len(listed)} files new or changed" if there else ""
    say(f"{target}: {gigabytes(size / 2**30)}{kept}")


def _listed(head: Head, folder: str) -> dict[str, File]:
    """The job's files by name, each name checked. What is being written just now, and what is nobody's, is left out."""
    leave = " -o ".join(f"-name {shlex.quote(pattern)}" for pattern in _LEFT_OUT)
    command = rf"cd {shlex.quote(folder)} && find . -mindepth 1 \( {leave} \) -prune -o -printf '%y %s %T@ %P\0'"
    stream = Stream(head.output(command, quiet=_QUIET))
    raw = bytearray()
    while piece := stream.some(1 << 16):
        raw += piece
        if len(raw) > _LONGEST_LIST:
            raise Refused(f"its list of files has more than {_LONGEST_LIST >> 20} MiB")
    result = stream.result()
    if result.exited != 0 and not raw:
        raise Refused(f"its files cannot be listed: {result.why}")
    files: dict[str, File] = {}
    for record in raw.decode(errors="surrogateescape").split("\0")[:-1]:
        name, file = _entry(record)
        if name in files:
            raise Refused(f"{name!r} is listed twice")
        if file:
            files[name] = file
    if len(files) > MOST_FILES:
        raise Refused(f"it has {len(files)} files; {MOST_FILES} are the most that are fetched")
    for name in files:
        for folder_of in Path(name).parents:
            if str(folder_of) in files:
                raise Refused(f"{str(folder_of)!r} is listed as a file and as a folder")
    return files


def _entry(record: str) -> tuple[str, File | None]:
    """A name and its file; None for a folder."""
    kind, _, rest = record.partition(" ")
    size, _, rest = rest.partition(" ")
    modified, _, name = rest.partition(" ")
    why = refusal(name)
    if why:
        raise Refused(f"{name!r} {why}")
    if kind not in ("f", "d"):
        raise Refused(f"{name!r} is neither a file nor a folder")
    seconds = modified.partition(".")[0]
    if not (size.isascii() and size.isdigit() and seconds.isascii() and seconds.isdigit() and len(size) < 20):
        raise Refused(f"{name!r} is listed with the size {size!r} and the time {modified!r}")
    return name, File(int(size), int(seconds)) if kind == "f" else None


def _there(target: Path, listed: dict[str, File]) -> dict[str, File]:
    """Those of the files that are in the target by now. A link on the way to one is never followed."""
    found = {}
    for name in listed:
        path = target
        for part in name.split("/"):
            path = path / part
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                break
            last = path == target / name
            if not (stat.S_ISREG(mode) if last else stat.S_ISDIR(mode)):
                raise Refused(f"{path} is in the way: it is no {'plain file' if last else 'folder'}")
            if last:
                found[name] = File(path.lstat().st_size, int(path.lstat().st_mtime))
    return found


def _take(head: Head, folder: str, wanted: dict[str, File], temporary: Path, limit: int) -> dict[str, int]:
    """The wanted files into a new folder: the size of each that was still there."""
    progress = Progress(sum(file.size for file in wanted.values()))
    taken: dict[str, int] = {}
    for names in _batches(sorted(wanted)):
        words = " ".join(shlex.quote(f"./{name}") for name in names)
        tar = "tar --format=gnu --hard-dereference --no-recursion --ignore-failed-read --warning=none"
        stream = Stream(head.output(f"cd {shlex.quote(folder)} && exec {tar} -c -- {words}", quiet=_QUIET))
        got = extract(stream, frozenset(names), temporary, limit, progress)
        limit -= sum(got.values())
        taken |= got
        result = stream.result()
        if result.exited not in (0, 1):  # 1: a file, the log say, grew while it was read
            raise Refused(f"tar: {result.why}")
    return taken


def _batches(names: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    length = 0
    for name in names:
        quoted = len(shlex.quote(f"./{name}").encode()) + 1
        if batch and length + quoted > _BATCH:
            yield batch
            batch, length = [], 0
        batch.append(name)
        length += quoted
    if batch:
        yield batch


def _put(temporary: Path, target: Path, taken: dict[str, int]) -> list[str]:
    """The fetched files in their place; the names of those that are new or have changed."""
    if not target.exists():
        temporary.chmod(0o755)
        temporary.rename(target)
        return list(taken)
    new = []
    for name in taken:
        place = target / name
        if place.exists() and filecmp.cmp(temporary / name, place, shallow=False):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        (temporary / name).replace(place)
        new.append(name)
    return new


class Progress:
    """Says every few seconds how much has come."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._said = total, 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._said > _PROGRESS_SECONDS:
            self._said = time.monotonic()
            say(f"{gigabytes(self._done / 2**30)} of {gigabytes(self._total / 2**30)}")
