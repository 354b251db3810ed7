"""Sends a working directory to nodes: each gets only the content that it does not have, over its kept connection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from invoke.exceptions import Exit

from fabfile.output import Progress, plural, prefixed, say
from fabfile.remote import node_program
from fabfile.remote.command import last_words
from fabfile.remote.fleet import Connections, results_of
from fabfile.remote.known_hosts import SshError
from fabfile.workdir.snapshot import Snapshot, bytes_text
from infra.inventory import Node, SshCluster

_QUIET = 120.0
"""Seconds without progress after which a transfer counts as lost."""
_CHUNK = 1 << 18
_SPARE = 64 << 20  # bytes that must stay free on a node's disk


@dataclass(frozen=True)
class _Asked:
    """A node that has been asked, and waits for what it lacks."""

    channel: Any
    lines: Any  # what it says; one reader for all, as it reads ahead
    missing: Mapping[str, int]  # SHA-256 -> bytes, in the order in which they are sent


def store_of(cluster: SshCluster) -> str:
    """The folder of the content store that all nodes of a cluster share; empty: each has its own."""
    return f"{cluster.shared_dir.rstrip('/')}/.trainyard/work" if cluster.shared_dir else ""


def send(fleet: Connections, nodes: Sequence[Node], snapshot: Snapshot, store: str = "") -> None:
    """Bring a working directory to these nodes, and print first how much that is. `store`: see `store_of`; where it is
    shared, one node is enough. Exit 1 names the nodes where it failed; what has arrived there is not sent again."""
    say(snapshot.summary)
    if not snapshot.hash:
        return
    sizes = {one.content: one.size for one in snapshot.entries}
    asked, wrong = results_of(lambda node: _ask(fleet, node, snapshot, store, sizes), nodes)
    try:
        _end(wrong)
        lacking = {name: one for name, one in asked.items() if one is not None}
        if lacking:
            _say_what(lacking)
            wanted = [node for node in nodes if node.name in lacking]
            _end(results_of(lambda node: _send(node, lacking[node.name], snapshot), wanted)[1])
    finally:
        for one in filter(None, asked.values()):
            one.channel.close()


def _end(wrong: Mapping[str, str]) -> None:
    if wrong:
        raise Exit("\n".join(wrong.values()), code=1)


def _ask(fleet: Connections, node: Node, snapshot: Snapshot, store: str, sizes: Mapping[str, int]) -> _Asked | None:
    """Ask a node what it lacks; None if it has everything."""
    connection = fleet.connection(node)
    question = {"snapshot": snapshot.hash, "size": len(snapshot.manifest), "store": store}
    for _ in range(2):
        channel = connection.create_session()
        channel.settimeout(_QUIET)
        channel.exec_command(node_program.command("workdir"))
        lines = channel.makefile("r")
        with suppress(OSError):  # a node without the program has ended by now, which its exit code says
            channel.sendall(json.dumps(question).encode() + b"\n")
        first = lines.readline()
        if first or channel.recv_exit_status() != node_program.MISSING:
            break
        node_program.put(connection)
    if _answer(node, channel, first)["have"]:
        channel.close()
        return None
    channel.sendall(snapshot.manifest)
    answer = _answer(node, channel, lines.readline())
    missing = {sha256: sizes[sha256] for sha256 in answer["missing"]}
    total = sum(missing.values())
    if total > answer["free"] - _SPARE:
        room = f"{bytes_text(total)} to send, and its disk has {bytes_text(answer['free'])} free"
        raise SshError(f"{node.name}: no room for the working directory: {room}")
    return _Asked(channel, lines, missing)


def _say_what(asked: Mapping[str, _Asked]) -> None:
    """How much goes to which nodes; one line for all nodes that lack the same."""
    by_content: dict[tuple[str, ...], list[str]] = {}
    for name, one in asked.items():
        by_content.setdefault(tuple(one.missing), []).append(name)
    for names in by_content.values():
        missing = asked[names[0]].missing
        what = f"{plural(len(missing), 'file')} ({bytes_text(sum(missing.values()))}) to send"
        say(f"working directory: {what if missing else 'only the list of its files to send'} to {', '.join(names)}")


def _send(node: Node, asked: _Asked, snapshot: Snapshot) -> None:
    """Send what a node lacks, and wait until it has checked it. SshError."""
    paths = {one.content: one.path for one in snapshot.entries}
    progress = Progress(sum(asked.missing.values()), lambda line: say(prefixed(node.name, line)))
    lost: OSError | None = None
    try:
        for sha256, size in asked.missing.items():
            _send_file(asked.channel, snapshot, paths[sha256], size, progress)
        asked.channel.shutdown_write()
    except OSError as error:
        if not asked.channel.closed:
            raise
        lost = error  # the node has ended: it may have said why
    try:
        line = asked.lines.readline()
    except OSError:
        line = ""
    if lost and not line:
        raise lost
    _answer(node, asked.channel, line)


def _send_file(channel: Any, snapshot: Snapshot, name: str, size: int, progress: Progress) -> None:
    """Send exactly `size` bytes of a file. SshError if it has fewer by now; the node checks its hash."""
    path = snapshot.folder / name
    try:
        file = path.open("rb")
    except OSError as error:
        raise SshError(f"{path}: cannot be read any more: {error.strerror}") from None
    with file:
        while size:
            piece = file.read(min(size, _CHUNK))
            if not piece:
                raise SshError(f"{path}: changed while it was sent; launch again, or name it in .trainyardignore")
            channel.sendall(piece)
            progress(len(piece))
            size -= len(piece)


def _answer(node: Node, channel: Any, line: str) -> dict[str, Any]:
    """A line of what the node says. SshError if it is none, or says why the node does not go on."""
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        raise SshError(f"{node.name}: cannot take the working directory: {last_words(channel)}") from None
    if answer.get("problem"):
        raise SshError(f"{node.name}: the working directory was not taken: {answer['problem']}")
    return answer
