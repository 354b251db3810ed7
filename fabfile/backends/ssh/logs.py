"""Read a job's log from the program on the head that sends it."""

from __future__ import annotations

import json
from collections.abc import Generator

from invoke.exceptions import Exit

from fabfile.backends.base import Job, LogLine, LogPart, LogRequest
from fabfile.backends.ssh.head import Head, lost_connections, runs
from fabfile.remote.command import last_words

_SILENCE = 10.0  # seconds without output of the program on the head after which the connection counts as lost


def log_parts(head: Head, request: LogRequest) -> Generator[LogPart, None, None]:
    """Yield the log's parts over one connection; Unreachable if it breaks. `request.cursor` is in bytes of the log."""
    argv = ["logs", f"{runs(head.cluster)}/{request.job}", "--offset", str(request.cursor), "--tail", str(request.tail)]
    argv += ["--rank", request.rank] if request.rank else []
    argv += ["--since", str(request.since)] if request.since else []
    argv += ["--follow"] if request.follow else []
    with lost_connections(), head.start(*argv) as channel:
        channel.settimeout(_SILENCE)
        for line in channel.makefile("r"):
            event = json.loads(line)  # {"lines": [[time, node, rank, text]], "offset": bytes, "state": a job's record}
            yield LogPart(
                tuple(LogLine(node, rank, text) for _, node, rank, text in event.get("lines", ())),
                event.get("offset"),
                Job.from_record(event["state"]) if "state" in event else None,
            )
        if channel.recv_exit_status() != 0:
            raise Exit(f"{head.node.name}: {last_words(channel)}", code=1)
        raise OSError("the connection broke")
