"""Read a job's log from the program on the head that sends it."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.base import Job, LogLine, LogPart, LogRequest
from fabfile.backends.ssh.head import Head, lost_connections, runs

_SILENCE = 10.0
"""Seconds without output of the program on the head after which the connection counts as lost."""


def log_parts(head: Head, request: LogRequest) -> Generator[LogPart, None, None]:
    """Yield the log's parts over one connection; Unreachable if it breaks. `request.cursor` is in bytes of the log."""
    argv = ["logs", f"{runs(head.cluster)}/{request.job}", "--offset", str(request.cursor), "--tail", str(request.tail)]
    argv += ["--rank", request.rank] if request.rank else []
    argv += ["--since", str(request.since)] if request.since else []
    argv += ["--follow"] if request.follow else []
    with lost_connections(), head.start(*argv) as channel:
        channel.settimeout(_SILENCE)
        for line in channel.makefile("r"):
            yield _part(json.loads(line))
        if channel.recv_exit_status() != 0:
            stderr = channel.makefile_stderr("r").read()
            text = stderr.decode(errors="replace") if isinstance(stderr, bytes) else str(stderr)
            raise Exit(f"{head.node.name}: {(text.strip() or 'no answer').splitlines()[-1]}", code=1)
        raise OSError("the connection broke")


def _part(event: dict[str, Any]) -> LogPart:
    """An event of the program: {"lines": [[time, node, rank, text]], "offset": bytes, "state": the job's record}."""
    return LogPart(
        tuple(LogLine(node, rank, text) for _, node, rank, text in event.get("lines", ())),
        event.get("offset"),
        Job.from_record(event["state"]) if "state" in event else None,
    )
