"""A job's log, live: from where one looks on, through lost connections, to the job's end."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import paramiko
from invoke.exceptions import Exit

from fabfile.backends.ssh.head import Head, runs
from fabfile.log_display import Shown
from fabfile.remote.fleet import SshError, apart

_AGAIN = 1.0
_PATIENCE = 300.0
"""Seconds without the head after which following it is given up."""
_SILENCE = 10.0
"""Seconds without a sign from the program on the head after which the connection counts as lost."""


@dataclass(frozen=True)
class Wanted:
    """Which lines of a job."""

    job: str
    rank: str = ""
    since: float = 0.0
    """Seconds before now; 0: from the start."""
    tail: int = -1
    """Only so many of what is there already; -1: all."""
    follow: bool = True
    offset: int = 0
    """Bytes of the log to leave out: what a resumed job had said before."""
    every: int | None = 1
    """Which steps are shown, see Shown."""


def follow(head: Head, wanted: Wanted) -> dict[str, Any]:
    """Print the lines until the job is over, or until what is there is told; the state it is in then."""
    with closing(Shown(wanted.every)) as shown:
        return _follow(head, wanted, shown)


def _follow(head: Head, wanted: Wanted, shown: Shown) -> dict[str, Any]:
    offset, tail, lost = wanted.offset, wanted.tail, 0.0
    while True:
        try:
            for event in apart(_events(head, wanted, offset, tail)):
                lost = 0.0
                for _, node, rank, text in event.get("lines", ()):
                    shown.line(node, rank, text)
                if event.get("offset") is not None:
                    offset, tail = event["offset"], -1
                if "state" in event:
                    state: dict[str, Any] = event["state"]
                    return state
        except (SshError, paramiko.SSHException, EOFError, OSError) as error:
            now = time.monotonic()
            if not lost:
                shown.warn(f"connection to {head.node.name} lost, trying again: {error}")
            lost = lost or now
            if now - lost > _PATIENCE:
                again = f"next: fab logs {wanted.job} --follow"
                raise Exit(f"{head.node.name}: {error}\n{again}", code=1) from None
            time.sleep(_AGAIN)


def _events(head: Head, wanted: Wanted, offset: int, tail: int) -> Generator[dict[str, Any], None, None]:
    """The events of one connection; OSError when it breaks."""
    argv = ["logs", f"{runs(head.cluster)}/{wanted.job}", "--offset", str(offset), "--tail", str(tail)]
    argv += ["--rank", wanted.rank] if wanted.rank else []
    argv += ["--since", str(wanted.since)] if wanted.since and offset == wanted.offset else []
    argv += ["--follow"] if wanted.follow else []
    with head.start(*argv) as channel:
        channel.settimeout(_SILENCE)
        for line in channel.makefile("r"):
            yield json.loads(line)
        if channel.recv_exit_status() != 0:
            said = channel.makefile_stderr("r").read()
            text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
            raise Exit(f"{head.node.name}: {(text.strip() or 'no answer').splitlines()[-1]}", code=1)
        raise OSError("the connection broke")
