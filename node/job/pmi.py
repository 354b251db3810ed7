"""Lets the processes of an MPI program find each other where no launcher's program does: in pods of Kubernetes,
and over SSH on nodes without the head.

This is the server's side of PMI-1, the protocol in which an MPI process asks for its number and for what the others
have put up: lines such as `cmd=get kvsname=job key=bc-0`. Intel MPI and MPICH speak it over the connection whose file
descriptor is in PMI_FD. https://github.com/pmodels/mpich/tree/main/src/pmi

A process first says the token of the attempt and its number: others of the network are not listened to.
"""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress

_NAME = "job"
_LONGEST = 1 << 20
_LIMITS = "kvsname_max=256 keylen_max=64 vallen_max=4096"
VARIABLE = "TRAINYARD_PMI"
"""`ADDRESS PORT TOKEN` for the processes of an attempt."""


class Server:
    """Serves one attempt. Its threads end with the connections, and these with the processes."""

    def __init__(self, address: str, size: int) -> None:
        """Listen at this address for `size` processes."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=max(16, size))
        self._size, self._token = size, secrets.token_hex(16)
        self._values: dict[str, str] = {}
        self._all_here = threading.Barrier(size)
        self.where = f"{address} {self._listener.getsockname()[1]} {self._token}"
        """For VARIABLE."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Serve nobody any more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._all_here.abort()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        ended = suppress(OSError, threading.BrokenBarrierError)
        with ended, connection, connection.makefile("rw", newline="\n") as lines:
            if not secrets.compare_digest(lines.readline(_LONGEST).strip().encode(), self._token.encode()):
                return
            while line := lines.readline(_LONGEST):
                if answer := self._answer(dict(word.partition("=")[::2] for word in line.split())):
                    lines.write(f"{answer}\n")
                    lines.flush()

    def _answer(self, asked: dict[str, str]) -> str:
        """The answer to a line; empty for one that has none."""
        match asked.get("cmd", ""):
            case "init":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                return f"cmd=maxes {_LIMITS}"
            case "get_appnum":
                return "cmd=appnum appnum=0"
            case "get_universe_size":
                return f"cmd=universe_size size={self._size}"
            case "get_my_kvsname":
                return f"cmd=my_kvsname kvsname={_NAME}"
            case "put":
                self._values[asked["key"]] = asked.get("value", "")
                return "cmd=put_result rc=0 msg=success"
            case "get":
                value = self._values.get(asked["key"])
                if value is None:
                    return "cmd=get_result rc=-1 msg=key_not_found"
                return f"cmd=get_result rc=0 msg=success value={value}"
            case "barrier_in":
                self._all_here.wait()
                return "cmd=barrier_out"
            case "finalize":
                return "cmd=finalize_ack"
        return ""


def join(where: str, rank: int, size: int) -> tuple[socket.socket, dict[str, str]]:
    """A process' connection to the server, which it is to inherit, and the variables that name it. OSError."""
    address, port, token = where.split()
    connection = socket.create_connection((address, int(port)), timeout=30)
    connection.settimeout(None)
    connection.sendall(f"{token}\n".encode())
    connection.set_inheritable(True)
    return connection, {"PMI_FD": str(connection.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
