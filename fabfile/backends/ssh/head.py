"""The programs of a job on the head, asked from here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import paramiko
from invoke.exceptions import Exit

from fabfile.remote.command import Result, follow, guarded, stream
from fabfile.remote.deploy import deploy
from fabfile.remote.fleet import Fleet, apart, in_parallel
from infra.inventory import Node, SshCluster

TIMEOUT = 60.0
LATEST = "latest"
"""Stands for the id of the newest job of a cluster."""


class Head:
    """The head of a cluster, with this checkout's programs on it."""

    def __init__(self, fleet: Fleet, folder: str = "") -> None:
        self.fleet, self.cluster = fleet, fleet.cluster
        self.node = self.cluster.head
        self.folder = folder or deploy(fleet, [self.node])[self.node.name].folder

    def start(self, *argv: str) -> paramiko.Channel:
        """One of the programs, its stdin and output open."""
        channel: paramiko.Channel = self.fleet.connection(self.node).create_session()
        channel.exec_command(f"exec python3 -I {shlex.join([f'{self.folder}/launch', *argv])}")
        return channel

    def ask(self, *argv: str, told: object = None) -> Any:
        """Its answer in JSON to something told."""

        def one(node: Node) -> Result:
            channel: Any
            with self.start(*argv) as channel:
                if told is not None:
                    channel.sendall(json.dumps(told).encode() + b"\n")
                channel.shutdown_write()
                return follow(node.name, channel, timeout=TIMEOUT)

        result = in_parallel(one, [self.node])[self.node.name]  # apart from Ctrl-C, see fabfile.remote.fleet.apart
        if not result.ok:
            raise Exit(f"{self.node.name}: {result.why}", code=1)
        try:
            return json.loads(result.stdout)
        except (ValueError, RecursionError):
            said = f"its answer cannot be read: {result.stdout[:80]!r}"
            raise Exit(f"{self.node.name}: {argv[0]}: {said}", code=1) from None

    def output(self, command: str, *, quiet: float) -> Iterator[bytes | Result]:
        """What a command prints, as it comes, not line by line; last its Result, with what it said on stderr. It is
        ended after `quiet` seconds without a byte."""
        return apart(self._output(command, quiet))

    def _output(self, command: str, quiet: float) -> Generator[bytes | Result, None, None]:
        channel: Any
        with self.fleet.connection(self.node).create_session() as channel:
            channel.exec_command(guarded(command))
            yield from stream(self.node.name, channel, quiet=quiet)

    def run(self, command: str, timeout: float = TIMEOUT) -> Result:
        return self.fleet.run(command, nodes=[self.node], timeout=timeout)[self.node.name]


def runs(cluster: SshCluster) -> str:
    """Where the jobs' directories are, on every node: relative to the home, or shared."""
    return f"{cluster.shared_dir}/runs" if cluster.shared_dir else "runs"


def state(head: Head, job: str) -> dict[str, Any]:
    """A job's state, by its id, by its number or as `latest`; Exit 2 with the jobs that there are."""
    every: list[dict[str, Any]] = head.ask("jobs", runs(head.cluster))
    found = find(every, job)
    if found is None:
        names = ", ".join(one["id"] for one in every[-8:]) or "none"
        raise Exit(f"no job {job!r} on {head.cluster.name}; there are: {names}", code=2)
    return found


def find(every: Sequence[dict[str, Any]], job: str) -> dict[str, Any] | None:
    """The one of these states, ordered by number, that is meant by an id, a number or `latest`."""
    if job == LATEST:
        return every[-1] if every else None
    numbered = [one for one in every if job.isdigit() and one["id"].endswith(f"-{job}")]
    return next((one for one in every if one["id"] == job), numbered[-1] if numbered else None)
