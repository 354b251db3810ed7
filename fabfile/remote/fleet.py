"""The connections to a cluster's nodes, over SSH or not. A command ends with the connection that it was started on."""

from __future__ import annotations

import queue
import threading
import time
from _thread import start_new_thread
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, Protocol, Self, TypeVar

from fabfile.remote.command import UNREACHABLE, OnLine, Result, follow, guarded
from fabfile.remote.connection import StrictConnection, connect, identity_of, lost_is_ssh_error, shut, where
from fabfile.remote.known_hosts import SshError, known_hosts
from fabfile.remote.openssh import jump_node
from infra.inventory import Node, SshCluster

T = TypeVar("T")
AHEAD = 100  # items that `apart` reads ahead: with a slow terminal the reading waits, and memory does not grow


class Connected(Protocol):
    """An open connection to a node."""

    node: Node

    def create_session(self) -> Any:
        """A new channel on it, as paramiko.Channel is one, for one command."""

    def close(self) -> None:
        """Close it with its channels, which ends the commands on the node."""


class Connections(ABC):
    """Connections to a cluster's nodes, on which commands run."""

    cluster: SshCluster

    @abstractmethod
    def connection(self, node: Node, timeout: float | None = None) -> Connected:
        """The open connection to a node, made again if it was lost; SshError. Threads may ask for different nodes."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections; the guards end what still runs on the nodes."""

    def run(
        self,
        command: str,
        *,
        nodes: Iterable[Node] | None = None,
        timeout: float | None = None,
        quiet: float | None = None,
        on_line: OnLine | None = None,
    ) -> dict[str, Result]:
        """Run a command on these nodes at once (default: all); the results are by name, in the order of the nodes. An
        unreachable node has a result too, with exit code 255 and the reason. `timeout` limits the command, `quiet` the
        time without output, in seconds; `on_line(node, stream, line)` is called for each line as it comes."""
        guard = guarded(command)

        def one(node: Node) -> Result:
            try:
                with lost_is_ssh_error(node):
                    connection = self.connection(node)
                    channel = connection.create_session()
                    channel.exec_command(guard)
            except SshError as error:
                return Result(node.name, UNREACHABLE, stderr=str(error), reason=str(error))
            result = follow(node.name, channel, timeout=timeout, quiet=quiet, on_line=on_line)
            if result.reason:
                connection.close()  # this ends the command on the node
            return result

        try:
            return in_parallel(one, self.cluster.nodes if nodes is None else nodes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Fleet(Connections):
    """SSH connections: one per node, opened when first needed, all through one jump connection."""

    def __init__(self, cluster: SshCluster, timeout: float = 10) -> None:
        if cluster.identity_file:
            identity_of(cluster.identity_file)  # reports an unusable key once, not once per node
        known_hosts(cluster)
        self.cluster = cluster
        self._timeout = timeout
        self._open: dict[str, StrictConnection] = {}
        self._jump: StrictConnection | None = None
        self._jump_lock = threading.Lock()
        self._jump_tries = 0
        self._jump_error: SshError | None = None
        self._closed = False

    def connection(self, node: Node, timeout: float | None = None) -> StrictConnection:
        kept = self._open.get(node.name)
        if kept is not None:
            if kept.is_connected:
                return kept
            kept.close()
        timeout = self._timeout if timeout is None else timeout
        connection = connect(self.cluster, node, timeout, via=self._via(timeout))
        self._open[node.name] = connection
        if self._closed:  # meanwhile, by Ctrl-C: nothing may be started any more
            connection.close()
            raise SshError(f"{where(node)}: closed")
        return connection

    def close(self) -> None:
        self._closed = True
        # All sockets first: that is immediate and ends the commands.
        connections = [*self._open.values(), *([self._jump] if self._jump else [])]
        for connection in connections:
            if connection._socket is not None:
                shut(connection._socket)
        for connection in connections:
            connection.close()

    def _via(self, timeout: float) -> StrictConnection | None:
        jump = jump_node(self.cluster)
        if jump is None:
            return None
        tries = self._jump_tries
        with self._jump_lock:
            if self._jump is not None and self._jump.is_connected:
                return self._jump
            if tries != self._jump_tries and self._jump_error is not None:
                raise self._jump_error  # just tried by another thread: 64 nodes must not each wait for the timeout
            self._jump_tries, self._jump_error = self._jump_tries + 1, None
            try:
                self._jump = connect(self.cluster, jump, timeout)
            except SshError as error:
                self._jump_error = error
                raise
            return self._jump


def results_of(work: Callable[[Node], T], nodes: Iterable[Node]) -> tuple[dict[str, T], dict[str, str]]:
    """As in_parallel, but an SshError ends only its node's work: (the results, why others have none), by name."""

    def one(node: Node) -> T | SshError:
        try:
            with lost_is_ssh_error(node):
                return work(node)
        except SshError as error:
            return error

    found = in_parallel(one, nodes)
    wrong = {name: str(result) for name, result in found.items() if isinstance(result, SshError)}
    return {name: result for name, result in found.items() if not isinstance(result, SshError)}, wrong


def in_parallel(work: Callable[[Node], T], nodes: Iterable[Node]) -> dict[str, T]:
    """Call `work` for each node, each in its own thread; results by node name. The first error, or Ctrl-C, is raised
    at once, without waiting for the other nodes."""
    done: queue.SimpleQueue[tuple[str, T | None, BaseException | None]] = queue.SimpleQueue()

    def one(node: Node) -> None:
        try:
            done.put((node.name, work(node), None))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            done.put((node.name, None, error))

    nodes = list(nodes)
    for node in nodes:
        start_new_thread(one, (node,))  # not Thread.start, see `apart`
    results: dict[str, T] = {}
    for _ in nodes:
        name, result, error = done.get()
        if error is not None:
            raise error
        results[name] = result  # type: ignore[assignment] # None only with an error
    return {node.name: results[node.name] for node in nodes}


def apart(items: Generator[T, None, None]) -> Iterator[T]:
    """Yield the same items, read in a separate thread at most AHEAD items ahead. paramiko takes its locks outside of
    `try`: Ctrl-C at that moment leaves one locked, and closing the channel then hangs. Python raises Ctrl-C in the main
    thread only, so this thread is safe."""
    # Not a Queue: it is written in Python, where Ctrl-C can leave its lock taken in the same way. Nor Thread.start:
    # it waits for the thread, and Ctrl-C in that wait ends in "cannot release un-acquired lock".
    taken: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    closed = threading.Event()

    def take() -> None:
        try:
            with closing(items):
                for item in items:
                    taken.put((item, None))
                    while taken.qsize() > AHEAD and not closed.is_set():
                        time.sleep(0.01)
                    if closed.is_set():
                        return
            taken.put((None, StopIteration()))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            taken.put((None, error))

    try:
        start_new_thread(take, ())
        while True:
            item, error = taken.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc] # None only with an error
    finally:
        closed.set()
