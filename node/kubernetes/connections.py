"""The supervisor's side of the connections with the job's pods: it listens, and knows which pods are there.

Each pod's agent (node/kubernetes/agent.py) connects and says who it is, with the job's token. Until an attempt begins
both sides send a `beat` a second. Then the agent runs a keeper on the connection, which ends with the attempt, and
connects again. So a pod that is there is one whose connection has just been seen to work.
"""

from __future__ import annotations

import hmac
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from node.job import files
from node.job.files import LEASE
from node.job.keeper_connection import NodeEvent, wait_for_room
from node.job.spec import KeeperSpec
from node.kubernetes.identity import Address, Pod

HELLO = 4096
"""Bytes of the longest hello."""
_HELLO_SECONDS = 5.0
_STRANGERS = 64
"""Connections that have not said hello yet; more are closed at once."""
_LINE = 1 << 20
"""Bytes of the longest line of a keeper: a rank's line is at most 16 KiB, six times that in JSON."""
_BEAT = 1.0
_COMPLAINTS = 5
"""Refused connections that the job's log tells of; somebody may try all day."""


class Connection:
    """The connection with one pod, and the link to its keeper in the attempt that takes it."""

    def __init__(self, pod: Pod, stream: socket.socket, rest: bytes) -> None:
        """`rest`: what has been read after its hello."""
        self.pod, self.node, self.complaint = pod, pod.machine, ""
        self._stream, self._rest = stream, rest
        self._events: queue.SimpleQueue[NodeEvent] | None = None
        self._lock, self._saying = threading.Lock(), threading.Lock()
        self.is_open = True
        self.was_closed = False
        """Whether the pod's end of it has closed it: what had it there has ended."""

    def keep(self, spec: KeeperSpec, events: queue.SimpleQueue[NodeEvent]) -> None:
        """Have the agent run a keeper, whose events go into the queue from now on."""
        with self._lock:
            self._events, self.node = events, spec.node
            if not self.is_open:
                events.put((self.node, None))
        self.say(f"keep\n{json.dumps(asdict(spec))}")

    def say(self, word: str) -> None:
        with self._saying, suppress(OSError):
            self._stream.sendall(word.encode() + b"\n")

    def beat(self) -> None:
        """A word to an agent that waits; a keeper hears its attempt's own, which ends when the attempt hangs."""
        if self._events is None:
            self.say("beat")

    def cut(self) -> None:
        self.is_open = False
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Read until the connection ends. An agent that says nothing for the length of the lease is not there; how long
        a keeper may be silent, its attempt decides."""
        is_closed = True
        try:
            while self._hear(self._read()):
                pass
        except OSError as error:
            self.complaint = self.complaint or error.strerror or str(error)
            is_closed = isinstance(error, ConnectionResetError)  # what it had not read yet was lost with it
        with self._lock:
            self.was_closed, self.is_open = self.is_open and is_closed, False
            if self._events is not None:
                self._events.put((self.node, None))
        self._stream.close()

    def _read(self) -> bytes:
        while True:
            try:
                return self._stream.recv(1 << 16)
            except TimeoutError:
                if self._events is None or not self.is_open:
                    raise

    def _hear(self, data: bytes) -> bool:
        """Take in what was read; False at the end of the connection, or of our patience."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = files.parsed(line.decode(errors="replace"))
            if not isinstance(event.get("event"), str):
                self.complaint = line.decode(errors="replace").strip()[:400] or self.complaint
            elif self._events is not None:
                wait_for_room(self._events, lambda: not self.is_open)
                self._events.put((self.node, event))
        if len(self._rest) > _LINE:
            self.complaint = f"it sent a line of more than {_LINE >> 20} MiB"
            return False
        return bool(data)


class Listener:
    """Where the pods of a job connect."""

    def __init__(self, own: Pod, count: int, say: Callable[[str], None]) -> None:
        """`count`: how many pods the job has; `say` gets a line about each of the first connections refused."""
        self._count, self._say = count, say
        self._complaints = 0
        self._there: dict[int, Connection] = {}
        self._lock = threading.Lock()
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._over = threading.Event()
        family = socket.AF_INET6 if ":" in own.ip else socket.AF_INET
        self._server = socket.create_server((own.ip, 0), family=family, backlog=128)
        self.address = Address(own.ip, self._server.getsockname()[1], secrets.token_hex(32), own)
        for work in (self._accept, self._beat):
            threading.Thread(target=work, daemon=True).start()

    def there(self) -> list[Connection]:
        """The connections of the pods that are there, by their numbers."""
        with self._lock:
            return [each for _, each in sorted(self._there.items()) if each.is_open]

    def close(self) -> None:
        """Tell the pods that the job is over, and listen no more."""
        self._over.set()
        for each in self.there():
            each.say("over")
        with suppress(OSError):
            self._server.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                stream, (peer, *_) = self._server.accept()
            except OSError:
                if not self._over.wait(_BEAT):
                    continue
                return
            if not self._strangers.acquire(blocking=False):
                stream.close()
                continue
            threading.Thread(target=self._meet, args=(stream, peer), daemon=True).start()

    def _meet(self, stream: socket.socket, peer: str) -> None:
        """Hear who connects; serve the connection until its end, if it is a pod of the job."""
        try:
            found = self._welcome(stream)
        except (OSError, ValueError) as error:
            self._complain(f"a connection from {peer} was refused: {error}")
            with suppress(OSError):
                stream.sendall(f"refused {error}\n".encode())
            stream.close()
            return
        finally:
            self._strangers.release()
        found.serve()

    def _welcome(self, stream: socket.socket) -> Connection:
        """The connection of a pod that has said the right hello, in time; ValueError or OSError for any other."""
        line, rest = _first_line(stream, time.monotonic() + _HELLO_SECONDS)
        hello = files.parsed(line.decode(errors="replace"))
        token = hello.get("token")
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self.address.token.encode()):
            raise ValueError("it has not the job's token")
        record = hello.get("pod")
        pod = Pod.from_record(record if isinstance(record, dict) else {})
        if not 0 <= pod.index < self._count:
            raise ValueError(f"its number is {pod.index}, of {self._count} pods")
        stream.settimeout(LEASE)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = Connection(pod, stream, rest)
        found.say("welcome")
        with self._lock:
            before = self._there.get(pod.index)
            self._there[pod.index] = found
        if before is not None:  # of the pod that this one replaces, or of the same one, which lost it
            before.cut()
        return found

    def _complain(self, what: str) -> None:
        with self._lock:
            self._complaints += 1
            if self._complaints > _COMPLAINTS:
                return
        self._say(f"warning: {what}")

    def _beat(self) -> None:
        """A word a second to the pods that wait for an attempt."""
        while not self._over.wait(_BEAT):
            for each in self.there():
                each.beat()


def _first_line(stream: socket.socket, deadline: float) -> tuple[bytes, bytes]:
    """The first line, and what was read after it."""
    data = b""
    while b"\n" not in data:
        if len(data) > HELLO:
            raise ValueError(f"its first line is longer than {HELLO} bytes")
        stream.settimeout(max(0.01, deadline - time.monotonic()))
        more = stream.recv(4096)
        if not more:
            raise ValueError("it said nothing")
        data += more
    line, _, rest = data.partition(b"\n")
    return line, rest
