"""Takes a working directory's files into the store of this node: only those that it does not have.

Talks over its stdin and stdout, in lines of JSON:

    in   {"snapshot": hash of the manifest, "size": its bytes, "store": folder, or empty for this user's own}
    out  {"have": whether all is here}         if so, that is the end
    in   the manifest
    out  {"missing": [hash, ...], "free": bytes free on the disk}
    in   the content of these, one after the other
    out  {"problem": why it was not taken, or ""}
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from node.workdir import manifest
from node.workdir.store import DEFAULT, Damaged, Store


def main(_argv: list[str]) -> int:
    """Take what is sent; exit code 1 if it was not taken."""
    source = sys.stdin.buffer
    asked: dict[str, Any] = json.loads(source.readline())
    store = Store(Path(asked["store"]) if asked["store"] else DEFAULT)
    try:
        have = has(store, asked["snapshot"])
        _say({"have": have})
        if have:
            return 0
        problem = take(store, asked["snapshot"], source.read(asked["size"]), source)
    except OSError as error:
        problem = said(error, store.folder)
    _say({"problem": problem})
    if problem:
        return 1
    with suppress(OSError):  # nobody waits for it
        store.forget_old()
    return 0


def has(store: Store, snapshot: str) -> bool:
    """Whether a state of a working directory is here with all its content; it then counts as used now."""
    try:
        return not store.missing(store.entries(snapshot))
    except (FileNotFoundError, NotADirectoryError, Damaged):
        return False


def take(store: Store, snapshot: str, data: bytes, source: BinaryIO) -> str:
    """Take the manifest `data`, and from `source` the content that is not here; returns why not, or nothing."""
    if manifest.digest(data) != snapshot:
        return "its list of files did not arrive whole"
    entries = manifest.decode(data)
    missing, names = store.missing(entries), {one.content: one.path for one in entries}
    store.folder.mkdir(parents=True, exist_ok=True)
    _say({"missing": list(missing), "free": shutil.disk_usage(store.folder).free})
    for sha256, size in missing.items():
        try:
            store.take(sha256, size, source)
        except EOFError as error:
            return str(error)
        except Damaged:
            return f"{names[sha256]} has changed while it was sent: launch again"
    store.keep(data)
    return ""


def said(error: OSError, folder: Path) -> str:
    """An error of the disk, in one line."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no room left in {folder}"
    return f"{error.filename or folder}: {error.strerror or error}"


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)
