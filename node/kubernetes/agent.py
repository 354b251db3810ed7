"""In every pod of a job: connects to the job's supervisor, and runs a keeper on the connection for each attempt.

It goes on until the job is over: a supervisor that is lost comes again, in another pod, and says in supervisor.json
where it listens.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from node.job import cleanup, files
from node.job.files import LEASE
from node.job.own_ranks import end_with_parent
from node.kubernetes.identity import Address, Pod

RETRY = 0.3
"""Seconds between two attempts to connect."""
_CONNECT_SECONDS = 1.5
_LONGEST = 4096
"""Bytes of the supervisor's longest word to an agent."""

Lost = Callable[[Address], None]
"""Called again and again while the supervisor at this address cannot be reached."""


class Agent:
    """This pod's side of the connection."""

    def __init__(self, run_dir: Path, pod: Pod, program: str, lost: Lost) -> None:
        """`program`: the node program that runs the keeper."""
        self._run_dir, self._pod, self._program, self._lost = run_dir, pod, program, lost
        self._job = run_dir.name
        self._keeper: subprocess.Popen[bytes] | None = None
        self._leaving = False
        self._said = ""

    def run(self) -> int:
        """Serve the job until it is over; returns the exit code: 143 if Kubernetes has ended this pod before."""
        while not self._leaving:
            try:
                if self._is_over():
                    return 0
                address = self._address()
            except OSError as error:  # the shared volume does not answer for a moment
                self._say(f"{self._run_dir}: {error}")
                time.sleep(RETRY)
                continue
            stream = self._connected(address) if address else None
            if stream is None:
                if address is not None:
                    self._lost(address)
                time.sleep(RETRY)
                continue
            with stream:
                if self._serve(stream):
                    return 0
        return 128 + signal.SIGTERM

    def leave(self) -> None:
        """Kubernetes ends this pod: for a signal's handler. The keeper asks for a checkpoint first, if it can."""
        self._leaving = True
        if self._keeper is not None and self._keeper.poll() is None:
            self._keeper.send_signal(signal.SIGTERM)

    def _address(self) -> Address | None:
        """Where the supervisor listens; None while that is not known. In the first pod it is this pod's own: what one
        before it has written leads nowhere."""
        found = Address.read(self._run_dir)
        return None if found is None or (self._pod.index == 0 and found.pod != self._pod) else found

    def _is_over(self) -> bool:
        return files.read(self._run_dir / "state.json").get("state") in files.OVER

    def _connected(self, address: Address) -> socket.socket | None:
        """A connection to the supervisor on which it is said who we are; None if that is not possible now."""
        try:
            stream = socket.create_connection((address.address, address.port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            where = f"on {address.pod.machine} ({address.address}:{address.port})"
            self._say(f"the supervisor {where} cannot be reached: {error}")
            return None
        stream.settimeout(None)  # a keeper is to read and write it as a pipe
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = json.dumps({"token": address.token, "pod": self._pod.to_record()})
        with suppress(OSError):  # then reading says so
            stream.sendall(hello.encode() + b"\n")
        return stream

    def _serve(self, stream: socket.socket) -> bool:
        """Hear the supervisor until it asks for a keeper, and run that; True if the job is over."""
        while (word := self._word(stream)) != "keep":
            if word == "over":
                return True
            if self._leaving or not word or word.startswith("refused"):
                self._say(f"the supervisor: {word or 'no word from it'}")
                time.sleep(RETRY)
                return False
            self._said = ""
            with suppress(OSError):
                stream.sendall(b'{"event": "beat"}\n')
        if not self._leaving:
            self._keep(stream)
        return False

    def _word(self, stream: socket.socket) -> str:
        """The next line, and not a byte more, as what follows is the keeper's; empty at the end of the connection, or
        if none comes in time."""
        line, deadline = b"", time.monotonic() + LEASE
        while not line.endswith(b"\n") and len(line) < _LONGEST:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                return ""
            try:
                byte = stream.recv(1)
            except OSError:
                return ""
            if not byte:
                return ""
            line += byte
        return line.decode(errors="replace").strip()

    def _keep(self, stream: socket.socket) -> None:
        """Run a keeper on the connection, and see to it that nothing of the job is left when it has ended."""
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", self._program, "keep"],
            stdin=stream.fileno(),
            stdout=stream.fileno(),
            preexec_fn=end_with_parent,
        )
        stream.close()  # the keeper has it: when that ends, so does the connection
        if self._leaving:  # since just now
            self.leave()
        self._keeper.wait()
        self._keeper = None
        cleanup.kill_marked(self._job)

    def _say(self, text: str) -> None:
        """For `kubectl logs`: once for each new text."""
        if text != self._said:
            self._said = text
            print(text, file=sys.stderr, flush=True)
