"""Run a job's programs on the head, and read the job's log from the one that sends it."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import paramiko
from invoke.exceptions import Exit

from fabfile.backends.base import AnotherMachine, JobRecord, LogLine, LogPart, LogRequest, Unreachable
from fabfile.remote import node_program
from fabfile.remote.command import Result, follow, guarded, last_words, stream
from fabfile.remote.connection import reason
from fabfile.remote.deploy import deploy
from fabfile.remote.fleet import Connections, apart, in_parallel
from fabfile.remote.known_hosts import HostKeyMismatch, SshError
from infra.inventory import Node, SshCluster

TIMEOUT = 60.0
_SILENCE = 10.0  # seconds without output of the program on the head after which the connection counts as lost


class Head:
    """The head of a cluster, or another node in its place, with this checkout's programs copied to it."""

    def __init__(self, fleet: Connections, folder: str = "", node: Node | None = None) -> None:
        self.fleet, self.cluster = fleet, fleet.cluster
        self.node = node or self.cluster.head
        self.folder = folder or deploy(fleet, [self.node])[self.node.name].folder

    def start(self, *argv: str) -> Any:
        """Start one of the programs; its stdin and output are open."""
        channel = self.fleet.connection(self.node).create_session()
        channel.exec_command(f"exec {node_program.copy_command(self.folder, *argv)}")
        return channel

    def ask(self, *argv: str, stdin: object = None) -> Any:
        """The JSON that one of the programs prints; it gets `stdin` as JSON."""

        def one(node: Node) -> Result:
            channel: Any
            with self.start(*argv) as channel:
                if stdin is not None:
                    channel.sendall(json.dumps(stdin).encode() + b"\n")
                channel.shutdown_write()
                return follow(node.name, channel, timeout=TIMEOUT)

        # In a thread of its own, which no Ctrl-C interrupts: see fabfile.remote.fleet.apart.
        result = in_parallel(one, [self.node])[self.node.name]
        if not result.ok:
            raise Exit(f"{self.node.name}: {result.why}", code=1)
        try:
            return json.loads(result.stdout)
        except (ValueError, RecursionError):
            why = f"its answer cannot be read: {result.stdout[:80]!r}"
            raise Exit(f"{self.node.name}: {argv[0]}: {why}", code=1) from None

    def output(self, command: str, *, quiet: float) -> Iterator[bytes | Result]:
        """Yield a command's output in bytes as it comes, then its Result with its stderr. End it after `quiet` seconds
        without a byte. Raises Unreachable."""

        def output() -> Generator[bytes | Result, None, None]:
            channel: Any
            with lost_connections(), self.fleet.connection(self.node).create_session() as channel:
                channel.exec_command(guarded(command))
                yield from stream(self.node.name, channel, quiet=quiet)

        return apart(output())

    def run(self, command: str, timeout: float = TIMEOUT) -> Result:
        """Run a command on the head to its end; `timeout` is in seconds."""
        return self.fleet.run(command, nodes=[self.node], timeout=timeout)[self.node.name]


@contextmanager
def lost_connections() -> Iterator[None]:
    """Turn the errors of paramiko and sockets into Unreachable, or, for a wrong host key, AnotherMachine."""
    try:
        yield
    except HostKeyMismatch as error:
        raise AnotherMachine(str(error)) from None
    except (SshError, paramiko.SSHException, EOFError, OSError) as error:
        raise Unreachable(reason(error)) from None


def runs(cluster: SshCluster) -> str:
    """The folder of the jobs' directories on every node: relative to the home, or in the shared folder."""
    return f"{cluster.shared_dir}/runs" if cluster.shared_dir else "runs"


def _log_part(event: dict[str, Any], job: str) -> LogPart:
    """Make a part of a job's log of {"lines": [[time, node, rank, text]], "offset": bytes, "state": the job's record}.
    ValueError or TypeError for anything else, and for the record of another job."""
    lines = tuple(LogLine(str(node), str(rank), str(text)) for _, node, rank, text in event.get("lines", ()))
    offset = event.get("offset")
    if offset is not None and not isinstance(offset, int):
        raise ValueError(f"offset = {offset!r}: must be a number of bytes")
    if "state" not in event:
        return LogPart(lines, offset)
    record = JobRecord.from_record(event["state"])
    if record.id != job:
        raise ValueError(f"the record of {record.id} in place of {job}'s")
    return LogPart(lines, offset, record)


def log_parts(head: Head, request: LogRequest) -> Generator[LogPart, None, None]:
    """Yield the log's parts over one connection; Unreachable if it breaks. `request.cursor` is in bytes of the log."""
    argv = ["logs", f"{runs(head.cluster)}/{request.job}", "--offset", str(request.cursor), "--tail", str(request.tail)]
    argv += ["--rank", request.rank] if request.rank else []
    argv += ["--since", str(request.since)] if request.since else []
    argv += ["--follow"] if request.follow else []
    with lost_connections(), head.start(*argv) as channel:
        channel.settimeout(_SILENCE)
        for line in channel.makefile("r"):
            try:
                part = _log_part(json.loads(line), request.job)
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise Exit(f"{head.node.name}: its log cannot be read: {error}", code=1) from None
            yield part
        # Below 0: the connection was lost. From 128 on: it was killed, as with a pod that it ran in.
        if 0 < channel.recv_exit_status() < 128:
            raise Exit(f"{head.node.name}: {last_words(channel)}", code=1)
        raise OSError("the connection broke")
