"""The SHA-256 of a folder's files, remembered in ~/.trainyard/workdirs: an unchanged file is not read again."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

_SETTLED_NS = 2_000_000_000
"""A file that changed less than this before the scan is not remembered: it may change again within the same tick of the
file system's clock (2 s on FAT, the coarsest), and would then look unchanged."""
_THREADS = 4
_OLD = 90 * 86400.0  # seconds after which what was remembered of another folder is removed

Known = dict[str, list[object]]
"""Path -> [bytes, time of change, time of the inode's change, inode, SHA-256]; times in nanoseconds."""


def of_files(folder: Path, states: dict[str, os.stat_result]) -> dict[str, str]:
    """The hash of each of these files below a folder, which have been found in these states. OSError names a file."""
    started = time.time_ns()
    memory = _memory(folder)
    before = _read(memory)
    known: Known = {}
    for name, state in states.items():
        row = before.get(name)
        if isinstance(row, list) and row[:4] == _state(state):
            known[name] = row
    new = [name for name in states if name not in known]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = dict(zip(new, pool.map(lambda name: _hash(folder / name), new), strict=True))
    hashes = {name: str(row[4]) for name, row in known.items()} | found
    for name, value in found.items():
        if started - max(states[name].st_mtime_ns, states[name].st_ctime_ns) > _SETTLED_NS:
            known[name] = [*_state(states[name]), value]
    if known != before:
        _write(memory, known)
    return hashes


def _state(state: os.stat_result) -> list[object]:
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _memory(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return Path.home() / ".trainyard" / "workdirs" / f"{name}.json"


def _read(memory: Path) -> Known:
    try:
        known = json.loads(memory.read_text(encoding="ascii"))
    except (OSError, ValueError, RecursionError):  # not there, or damaged: the files are read again
        return {}
    return known if isinstance(known, dict) else {}


def _write(memory: Path, known: Known) -> None:
    """Remember it; what cannot be written is only slower the next time."""
    with suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        number, temporary = tempfile.mkstemp(dir=memory.parent, prefix=".new-")
        try:
            with os.fdopen(number, "w", encoding="ascii") as file:
                json.dump(known, file)
            Path(temporary).replace(memory)
        finally:
            Path(temporary).unlink(missing_ok=True)
        for other in memory.parent.iterdir():
            if time.time() - other.stat().st_mtime > _OLD:
                other.unlink()
