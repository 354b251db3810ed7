"""Clean up after a killed `pulumi up`: free its lock on the stack, end its language host.

Pulumi's file backend has a JSON file per lock, with the holder's process and host. Other backends do not record
whether the holder is alive.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.stacks import pulumi_cli


def free(stack: str) -> None:
    """Cancel the stack's lock if its holder is dead; Exit 1 names a holder that is alive."""
    import psutil  # imported here, and below: it would cost every verb 15 ms at its start

    held = _locks(stack)
    if held is None:
        say("the backend does not say who holds a lock: cancelling it as asked")
        pulumi_cli.ask(["pulumi", "cancel", "--yes", "--stack", stack])
        return
    for holder in held:
        pid, host = holder["pid"], holder["hostname"]
        if host != socket.gethostname():
            raise Exit(f"stack {stack}: locked by process {pid} on {host}; recover it there", code=1)
        if psutil.pid_exists(pid):
            raise Exit(f"stack {stack}: process {pid} is at work on it; wait for it, or stop it", code=1)
        say(f"lock of process {pid}, which is dead: freed")
    if held:
        pulumi_cli.ask(["pulumi", "cancel", "--yes", "--stack", stack])


def end_language_hosts() -> None:
    """End the language hosts whose pulumi is dead; left alone, they notice it only after five minutes."""
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended while we looked, or is another user's
            is_host = process.cmdline()[:1] and process.cmdline()[0].endswith("/pulumi-language-python")
            if is_host and process.environ().get("PYTHONPATH") == str(pulumi_cli.ROOT):
                parent = process.parent()
                if parent is None or parent.name() != "pulumi":
                    process.terminate()


def _locks(stack: str) -> list[dict[str, Any]] | None:
    """The holders of the stack's locks; None if the backend has no files on this machine."""
    info = json.loads(pulumi_cli.ask(["pulumi", "about", "--json"]))
    url = urlparse((info.get("backend") or {}).get("url", ""))
    if url.scheme != "file":
        return None
    root = Path(url.netloc + url.path).expanduser()
    return [json.loads(file.read_text()) for file in sorted(root.glob(f".pulumi/locks/**/{stack}/*.json"))]
