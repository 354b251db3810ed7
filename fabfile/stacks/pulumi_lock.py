"""Clean up after a killed `pulumi up`: repair its files, free its lock on the stack, end its language host.

Pulumi's file backend has a JSON file per lock, with the holder's process and host. Other backends do not record
whether the holder is alive.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.stacks import pulumi_cli
from fabfile.stacks.lock_text import is_alive


def half_written(stack: str, root: Path) -> dict[Path, Path | None]:
    """The files that a killed `pulumi` left half-written, each with the backup that can take its place, or None for one
    that Pulumi does not need. With them every command of Pulumi's ends in "EOF". `root` as from `backend_folder`.

    Its library rewrites the `.attrs` beside each file in place (they only have a content type and a hash, and may be
    missing), the state itself by a rename, which a power cut can still lose. None of them counts while a process holds
    a lock of the stack.
    """
    held, here = _locks(stack, root), socket.gethostname()
    if any(holder["hostname"] != here or is_alive(holder["pid"]) for holder in held):
        return {}
    attributes = (*root.glob("stacks/**/*.attrs"), *root.glob("locks/**/*.attrs"))
    found: dict[Path, Path | None] = {file: None for file in attributes if _parsed(file) is None}
    for state in root.glob(f"stacks/*/{escape(stack)}.json"):
        backup = state.with_name(f"{state.name}.bak")
        if _parsed(state) is None and _parsed(backup) is not None:
            found[state] = backup
    return found


def must_be_readable(stack: str, root: Path) -> None:
    """Exit 1 for a state that no repair mends: every command of Pulumi's would go on ending in "EOF", `pulumi stack ls`
    for another stack's, too. `root` as from `backend_folder`."""
    for state in sorted(root.glob("stacks/*/*.json")):
        if _parsed(state) is not None:
            continue
        if state.stem != stack:
            raise Exit(f"{state}: the state of another stack is cut off: fab recover --stack {state.stem}", code=1)
        remedy = f"put a copy back, or move it away and run: fab recover --stack {stack}"
        raise Exit(f"{state}: the state is cut off, and Pulumi has no backup of it; {remedy}", code=1)


def say_half_written(found: Mapping[Path, Path | None]) -> None:
    """Print each of these files, and how `repair_files` repairs it."""
    for file, backup in found.items():
        how = "replaced by Pulumi's backup of the state before" if backup else "removed (Pulumi does not need it)"
        say(f"{file}: a killed pulumi left it half-written; it will be {how}")


def repair_files(stack: str, root: Path) -> None:
    """Repair the files that are half-written now."""
    for file, backup in half_written(stack, root).items():
        if backup:
            shutil.copyfile(backup, file)
        else:
            file.unlink()


def free(stack: str, root: Path | None) -> None:
    """Cancel the stack's lock if its holder is dead; Exit 1 names a holder that is alive. `root` as above."""
    held = _locks(stack, root) if root else []
    if root is None:
        say("the backend does not record who holds a lock: cancelling it, as you asked")
    for holder in held:
        pid, host = holder["pid"], holder["hostname"]
        if host != socket.gethostname():
            raise Exit(f"stack {stack}: locked by process {pid} on {host}; recover it there", code=1)
        if is_alive(pid):
            raise Exit(f"stack {stack}: process {pid} is at work on it; wait for it, or stop it", code=1)
        say(f"freed the lock of process {pid}, which has ended")
    if held or root is None:
        pulumi_cli.ask(["pulumi", "cancel", "--yes", "--stack", stack])


def end_language_hosts() -> None:
    """End the language hosts whose pulumi is dead; left alone, they notice it only after five minutes."""
    import psutil  # here, as it would cost every verb 15 ms at its start

    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended while we looked, or is another user's
            is_host = process.cmdline()[:1] and process.cmdline()[0].endswith("/pulumi-language-python")
            if is_host and process.environ().get("PYTHONPATH") == str(pulumi_cli.ROOT):
                parent = process.parent()
                if parent is None or parent.name() != "pulumi":
                    process.terminate()


def _locks(stack: str, root: Path) -> list[dict[str, Any]]:
    """The holders of the stack's locks. A lock whose writing was cut off has no process: its `pid` is -1."""
    unknown = {"pid": -1, "hostname": socket.gethostname()}
    return [_parsed(file) or unknown for file in sorted(root.glob(f"locks/**/{escape(stack)}/*.json"))]


def backend_folder() -> Path | None:
    """The folder of Pulumi's file backend; None if the backend has no files on this machine."""
    url = urlparse(json.loads(pulumi_cli.ask(["pulumi", "whoami", "--json"]))["url"])
    if url.scheme != "file":
        return None
    path = url.netloc + url.path
    if path.startswith("~"):  # which Pulumi looks up in the user database, whatever $HOME says
        path = f"{pwd.getpwuid(os.getuid()).pw_dir}{path[1:]}"
    return Path(path) / ".pulumi"


def _parsed(file: Path) -> dict[str, Any] | None:
    """The file's JSON; None if it is missing or cut off."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found
