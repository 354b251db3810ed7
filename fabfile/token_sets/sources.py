"""Find a job's text, on the head or on this machine, and bring it to the head.

Each word of `data.source` is a path, a glob, `stdlib` or hf:NAME. A relative path or glob means this machine where it
is found here, else the head's home; an absolute one means the head where it is found there, else this machine. The
verb prints which one it took. Files of this machine go to ~/sources/KEY on the head; KEY is a hash of names, sizes and
times, so the same text is not sent again.
"""

from __future__ import annotations

import glob
import hashlib
import shlex
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from invoke.exceptions import Exit

from fabfile.output import gigabytes, say
from fabfile.question import must_be_answerable
from fabfile.remote.fleet import Connections
from fabfile.remote.send import Out, SendError, send

ASK_BYTES = 1 << 30
"""A folder larger than this is sent only after a question."""
FOLDER = "sources"
_SECONDS = 600.0
"""Seconds in which the head must take the next bytes, and finish writing after the last one."""


@dataclass(frozen=True)
class LocalFiles:
    """The files of this machine that one word of data.source names."""

    word: str
    root: Path
    """The folder that the names on the head are relative to."""
    files: tuple[Path, ...]

    @property
    def is_file(self) -> bool:
        """Whether the word names one file."""
        return self.files == (Path(self.word).expanduser().absolute(),)

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def key(self) -> str:
        """A hash of names, sizes and times: 16 hexadecimal digits."""
        facts = [(str(self.name(file)), file.stat().st_size, file.stat().st_mtime_ns) for file in self.files]
        return hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def name(self, file: Path) -> Path:
        """A file's name on the head, relative to the folder that they go to."""
        return file.relative_to(self.root)

    @property
    def on_head(self) -> str:
        """The path of the file, the folder or the glob on the head, relative to the home."""
        folder = f"{FOLDER}/{self.key}"
        if self.is_file:
            return f"{folder}/{self.files[0].name}"
        # prepare reads only text files of a folder, but every file that a glob matches.
        return f"{folder}/**/*" if glob.has_magic(self.word) else folder


def brought(fleet: Connections, words: Sequence[str], *, yes: bool) -> list[str]:
    """The words as paths that the head can read; files of this machine are sent there first. Prints where each is. Exit
    2 for a word found neither here nor on the head, and for a large folder when nobody can be asked."""
    return [_placed(fleet, word, yes=yes) for word in words]


def _placed(fleet: Connections, word: str, *, yes: bool) -> str:
    if word.startswith("hf:"):
        return word
    head, path = fleet.cluster.head, Path(word).expanduser()
    if path.is_absolute() and _is_on_head(fleet, word):
        say(f"data.source {word}: read on {head.name}")
        return word
    if local := found_here(word):
        _confirm(local, head.name, yes=yes)
        _send(fleet, local)
        return local.on_head
    if not path.is_absolute() and _is_on_head(fleet, word):
        say(f"data.source {word}: read on {head.name}, in {fleet.cluster.ssh_user}'s home; it is not on this machine")
        return word
    raise Exit(f"data.source {word}: neither on this machine ({path.absolute()}) nor on {head.name}", code=2)


def found_here(word: str) -> LocalFiles | None:
    """The files of this machine that a path or a glob names; None: none. Links inside a folder are not followed."""
    path = Path(word).expanduser().absolute()
    if path.is_dir():
        files = tuple(sorted(_below(path)))
        if not files:
            raise Exit(f"data.source {word}: a folder of this machine that has no files", code=2)
        return LocalFiles(word, path, files)
    if path.is_file():
        return LocalFiles(word, path.parent, (path,))
    names = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(word) else []  # noqa: PTH207
    files = tuple(Path(name) for name in names if Path(name).is_file())
    root = next(folder for folder in (path, *path.parents) if not glob.has_magic(str(folder)))
    return LocalFiles(word, root, files) if files else None


def _below(folder: Path) -> Iterator[Path]:
    """The files at any depth, without hidden ones and links."""
    for entry in folder.iterdir():
        if not entry.name.startswith(".") and not entry.is_symlink():
            if entry.is_dir():
                yield from _below(entry)
            elif entry.is_file():
                yield entry


def _is_on_head(fleet: Connections, word: str) -> bool:
    """Whether the head has this path, or a file that the glob matches."""
    head = fleet.cluster.head
    test = "import glob, os, sys; sys.exit(not glob.glob(os.path.expanduser(sys.argv[1]), recursive=True))"
    command = f"cd ~; exec python3 -c {shlex.quote(test)} {shlex.quote(word)}"
    result = fleet.run(command, nodes=[head], timeout=60)[head.name]
    if result.exited not in (0, 1):
        raise Exit(f"{head.name}: {result.why}", code=1)
    return result.ok


def _confirm(local: LocalFiles, head: str, *, yes: bool) -> None:
    size = gigabytes(local.bytes / 2**30)
    say(f"data.source {local.word}: {len(local.files)} files of this machine, {size}, are sent to {head}")
    if local.bytes <= ASK_BYTES or yes:
        return
    must_be_answerable(yes)
    if input(f"send {size} to {head}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Exit("nothing was sent", code=1)


def _send(fleet: Connections, local: LocalFiles) -> None:
    """Send the files as a tar over one SSH session; on the head they have another name until they are complete."""
    head, target = fleet.cluster.head, f"{FOLDER}/{local.key}"
    if fleet.run(f"cd ~; test -d {target}", nodes=[head], timeout=60)[head.name].ok:
        say(f"{head.name} has them already")
        return
    part = f"{target}.part"
    unpack = f"rm -rf {part} && mkdir -p {part} && tar -x -C {part} && mv -T {part} {target}"
    try:
        send(fleet, head, f"cd ~; {unpack}", lambda out: _pack(out, local), seconds=_SECONDS, total=local.bytes)
    except SendError as error:
        raise Exit(f"{head.name}: {local.word} was not sent: {error}", code=1) from None


def _pack(out: Out, local: LocalFiles) -> None:
    """Write the files as a tar, without their owners."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(fileobj=cast(IO[bytes], out), mode="w|", dereference=True) as archive:
        for file in local.files:
            archive.add(str(file), str(local.name(file)), filter=anonymous)
