"""The server's side of programs in pods: v5.channel.k8s.io over a WebSocket, and the programs as ordinary processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Message, Ping
from wsproto.utilities import LocalProtocolError

Object = dict[str, Any]
_PATH_IN_PODS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Streams:
    """A program's side of its streams."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.frames, self._lock = sock, Connection(ConnectionType.SERVER), threading.Lock()

    def send(self, stream: int, data: bytes, *, finished: bool = True) -> None:
        """Send a message, or, with `finished` false, the beginning of one."""
        self.raw(self.frames.send(BytesMessage(data=bytes([stream]) + data, message_finished=finished)))

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        with self._lock:
            self.sock.sendall(data)

    def end(self, code: int) -> None:
        """Tell how the program ended, and close."""
        status: Object = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            message = f"command terminated with non-zero exit code: exit status {code}"
            status = {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": message,
                "details": {"causes": causes},
            }
        self.send(3, json.dumps(status).encode())
        self.raw(self.frames.send(CloseConnection(code=1000)))

    def received(self) -> Iterator[bytes]:
        """The messages, until the other side closes."""
        whole = b""
        while data := self.sock.recv(1 << 16):
            self.frames.receive_data(data)
            for event in self.frames.events():
                if isinstance(event, Message):
                    whole += bytes(event.data)
                    if event.message_finished:
                        yield whole
                        whole = b""
                elif isinstance(event, Ping):
                    self.raw(self.frames.send(event.response()))
                elif isinstance(event, CloseConnection):
                    return


def run(argv: list[str], home: Path, streams: Streams) -> None:
    """Run a program; when the other side is gone its stdin ends, as a kubelet does it."""
    # Not the PATH of the test, which is the operator's side: a pod is Linux, where a test plays a mac, too.
    environment = {"HOME": str(home), "PATH": _PATH_IN_PODS, "LANG": "C.UTF-8", "KUBERNETES_SERVICE_HOST": "x"}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("TRAINYARD_")}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(argv, cwd="/", env=environment, **pipes) as program:  # type: ignore[call-overload]
        assert program.stdin and program.stdout and program.stderr
        readers = [
            threading.Thread(target=_forward, args=(streams, number, pipe))
            for number, pipe in ((1, program.stdout), (2, program.stderr))
        ]

        def ended() -> None:
            for reader in readers[:2]:
                reader.join()
            with suppress(OSError):  # as containerd does it: before the program itself has ended
                program.stdin.close()
            with suppress(OSError, LocalProtocolError):  # the other side has closed
                streams.end(program.wait() if program.wait() >= 0 else 128 - program.wait())
                streams.sock.shutdown(socket.SHUT_RD)

        readers.append(threading.Thread(target=ended))
        for thread in readers:
            thread.start()
        with suppress(OSError):
            for message in streams.received():
                if message == b"\xff\x00":
                    program.stdin.close()
                elif message[0] == 0 and not program.stdin.closed:
                    program.stdin.write(message[1:])
                    program.stdin.flush()
        with suppress(OSError):
            program.stdin.close()
        for thread in readers:
            thread.join()


def _forward(streams: Streams, number: int, pipe: Any) -> None:
    while data := pipe.read1(1 << 15):
        with suppress(OSError, LocalProtocolError):
            streams.send(number, data)
