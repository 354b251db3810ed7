"""Download a job's files into a folder on this machine. The sender is not trusted: the list of names is checked before
a byte is accepted, and the files are moved to their place when all are complete."""

from __future__ import annotations

import filecmp
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from fabfile.backends.base import File, JobFiles, Refused
from fabfile.output import Progress, gigabytes, say
from fabfile.remote.filenames import refusal
from node import folders

MOST_FILES = 100_000
_SMALL = 1 << 20  # bytes below which a file is fetched again even with the same size and time: cheap, and safe
_GROWTH = 1 << 30  # bytes that logs and metrics may grow by between the list and the fetch
_WIDEST = 100  # characters of a refused name that are shown
_SPARE = 256 << 20  # bytes that must stay free on this disk


def download(backend: JobFiles, job: str, target: Path, only: Sequence[str] = ()) -> None:
    """Fetch a job's new and changed files into a folder, and print how much that was. `only` has the names of what is
    wanted of its run directory, files and folders; empty: everything. Raises Refused."""
    listed = {
        name: file for name, file in checked(backend.files(job)).items() if not only or name.split("/")[0] in only
    }
    there = _there(target, listed)
    wanted = {name: file for name, file in listed.items() if file.size < _SMALL or there.get(name) != file}
    announced = sum(file.size for file in wanted.values())
    beside = target if target.exists() else target.parent  # on the target's disk, so that a rename works
    beside.mkdir(parents=True, exist_ok=True)
    room = max(0, shutil.disk_usage(beside).free - _SPARE)
    if announced > room:
        raise Refused(f"its files need {gigabytes(announced / 2**30)}, and {beside} has {gigabytes(room / 2**30)} free")
    temporary = Path(tempfile.mkdtemp(dir=beside, prefix=".fetch-"))
    try:
        limit = min(announced + _GROWTH, room)
        taken = backend.fetch(job, sorted(wanted), temporary, limit, Progress(announced))
        new = _put(temporary, target, taken)
    finally:
        with suppress(OSError):  # the error that has ended it counts
            folders.remove(temporary)
    for name in sorted(set(wanted) - set(taken)):
        say(f"{name}: was removed there before it could be read")
    size = sum(listed[name].size for name in listed if name not in taken) + sum(taken.values())
    kept = f", {len(new)} of {len(listed)} files new or changed" if there else ""
    say(f"{target}: {gigabytes(size / 2**30)}{kept}")


def checked(listed: Iterable[tuple[str, File | None]]) -> dict[str, File]:
    """The listed files by name; Refused if a name could lead out of the folder or occurs twice, or for too many."""
    files: dict[str, File] = {}
    for name, file in listed:
        why = refusal(name)
        if why:
            shown = repr(name) if len(name) <= _WIDEST else f"{name[:_WIDEST]!r}..."
            raise Refused(f"{shown} {why}")
        if name in files:
            raise Refused(f"{name!r} is listed twice")
        if file:
            files[name] = file
    if len(files) > MOST_FILES:
        raise Refused(f"it has {len(files)} files; at most {MOST_FILES} are fetched")
    for name in files:
        for folder in Path(name).parents:
            if str(folder) in files:
                raise Refused(f"{str(folder)!r} is listed as a file and as a folder")
    return files


def _there(target: Path, listed: dict[str, File]) -> dict[str, File]:
    """The listed files that the target already has. No link on the way to a file is followed."""
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
                raise Refused(f"{path} is in the way: it is not a {'plain file' if last else 'folder'}")
            if last:
                found[name] = File(path.lstat().st_size, int(path.lstat().st_mtime))
    return found


def _put(temporary: Path, target: Path, taken: dict[str, int]) -> list[str]:
    """Move the fetched files to their place; returns the names of those that are new or have changed."""
    if not target.exists():
        temporary.chmod(0o755)
        temporary.rename(target)
        return list(taken)
    new = [n for n in taken if not ((target / n).exists() and filecmp.cmp(temporary / n, target / n, shallow=False))]
    for name in new:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (temporary / name).replace(target / name)
    return new
