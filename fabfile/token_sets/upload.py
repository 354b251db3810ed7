"""Upload a prepared token set from this machine to the head over SSH, resumable.

Files stay in PATH/.upload until all have arrived, so that an upload continues after a lost connection. The head checks
them against the set's checksums when it copies them into the bucket.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from invoke.exceptions import Exit

from fabfile.output import gigabytes, say
from fabfile.remote.filenames import refusal
from fabfile.remote.fleet import Connections
from fabfile.remote.send import SendError, send
from fabfile.token_sets import token_set

MANIFEST = "manifest.json"
_BARE = ("train.bin", "val.bin")
_CHUNK = 1 << 18
_LONGEST_MANIFEST = 64 << 20
_QUIET = 120.0
"""Seconds without progress after which the connection counts as lost."""


def prepared(folder: Path) -> list[Path]:
    """The files of a token set, the manifest last. Exit 2 if the folder has none, or its manifest names a file outside:
    the folder may come from somebody else, and every file that is named is sent to the cluster."""
    try:
        names = _listed(folder) if (folder / MANIFEST).exists() else list(_BARE)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Exit(f"{folder / MANIFEST}: not the manifest of a token set", code=2) from None
    for name in names:
        _check(folder, name)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        kinds = f"needed: {MANIFEST} and what it lists, or nanoGPT's train.bin and val.bin"
        raise Exit(f"{folder}: not a prepared token set: {missing[0]} is missing; {kinds}", code=2)
    return [folder / name for name in names]


def _listed(folder: Path) -> list[str]:
    """The names of the files in the manifest, and its own."""
    _check(folder, MANIFEST)
    if (folder / MANIFEST).stat().st_size > _LONGEST_MANIFEST:
        raise Exit(f"{folder / MANIFEST}: has more than {_LONGEST_MANIFEST >> 20} MiB", code=2)
    manifest = json.loads((folder / MANIFEST).read_text())
    ranks = manifest["encoding"].get("ranks")
    named = [*(split["file"] for split in manifest["splits"].values()), *([ranks] if ranks else [])]
    names = [name for name in dict.fromkeys(named) if isinstance(name, str) and name != MANIFEST]
    if len(names) != len(named):
        raise ValueError("a file that is named twice, is the manifest, or has no name")
    return [*names, MANIFEST]


def _check(folder: Path, name: str) -> None:
    """Exit 2 unless `name` is a file directly in the folder; a link must not lead out of it."""
    why = (
        refusal(name) or ("is in a folder of its own" if "/" in name else "") or ("is hidden" if name[0] == "." else "")
    )
    if why:
        raise Exit(f"{folder / MANIFEST}: names the file {name!r}, which {why}; only plain names are sent", code=2)
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise Exit(f"{folder / name}: is a link that leads out of the folder: it is not sent", code=2)


def upload(fleet: Connections, files: Sequence[Path], path: str) -> None:
    """Put the files into the folder `path` on the head; they replace a token set there."""
    target = path.rstrip("/")
    work = f"{target}/.upload/{_key(files)}"
    head = fleet.cluster.head
    # Remove unfinished uploads of other sets.
    begin = f'for d in {shlex.quote(target)}/.upload/*; do [ "$d" = {shlex.quote(work)} ] || rm -rf "$d"; done'
    token_set.run(fleet, [head], f"{token_set.own(target)}; cd ~; {begin}; mkdir -p {shlex.quote(work)}")
    for file in files:
        _send(fleet, file, f"{work}/{file.name}")
    quoted = [shlex.quote(f"{work}/{file.name}") for file in files]  # the manifest last
    moves = "; ".join(f"mv {each} {shlex.quote(target)}/" for each in quoted)
    old = shlex.quote(f"{target}/{MANIFEST}")
    token_set.run(fleet, [head], f"set -e; cd ~; rm -f {old}; {moves}; rm -rf {shlex.quote(target)}/.upload")


def _send(fleet: Connections, file: Path, target: str) -> None:
    """Send one file, from where an earlier attempt stopped."""
    head, quoted, size = fleet.cluster.head, shlex.quote(target), file.stat().st_size
    found = fleet.run(f"cd ~; touch {quoted} && stat -c %s {quoted}", nodes=[head], timeout=_QUIET)[head.name]
    there = int(found.stdout) if found.ok else -1
    if not 0 <= there <= size:
        why = found.why if there < 0 else "longer than the file that is sent"
        raise Exit(f"{head.name}: {target}: {why}", code=1)
    if there == size:
        return
    rest = size - there
    say(f"{file.name}: {gigabytes(rest / 2**30)} to send")
    try:
        with file.open("rb") as source:
            source.seek(there)
            command = f"cd ~; exec cat >>{quoted}"
            send(fleet, head, command, lambda out: shutil.copyfileobj(source, out, _CHUNK), seconds=_QUIET, total=rest)
    except (SendError, OSError) as error:
        raise Exit(f"{head.name}: {file.name}: {error}; run the same command again to continue", code=1) from None


def _key(files: Sequence[Path]) -> str:
    """A key of the set: a hash of its manifest, or, without one, of names, sizes and times."""
    if files[-1].name == MANIFEST:
        return hashlib.sha256(files[-1].read_bytes()).hexdigest()[:16]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
