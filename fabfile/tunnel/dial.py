"""Connects to a port of a node: through the node's sshd, or on Kubernetes by a program in its pod."""

from __future__ import annotations

import shlex
import threading
from typing import Any

import paramiko

from fabfile.remote.command import last_words
from fabfile.remote.connection import StrictConnection, lost_is_ssh_error
from fabfile.remote.fleet import Connected, Connections
from fabfile.remote.known_hosts import SshError
from infra.inventory import Node

_SECONDS = 10.0
"""Limit for a node to open the connection to its own port."""
_RELAY = """
import os, socket, sys, threading
try:
    there = socket.create_connection(("localhost", int(sys.argv[1])), 5)
except OSError as error:
    sys.exit(f"{error.strerror or error}")
there.settimeout(None)
os.write(1, b".")
def send():
    while data := os.read(0, 65536):
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := there.recv(65536):
    while data:
        data = data[os.write(1, data):]
"""
"""Runs in a pod: writes one byte once it is connected to the port, then moves bytes between it and its own streams."""


class NobodyListens(Exception):
    """The node is reached, and nothing accepts connections on its port: why, in one line."""


class _Lost(Exception):
    """The connection to the node broke while it was used."""


class Dialler:
    """Opens connections to ports of one node; a connection to the node itself that was lost is made again."""

    def __init__(self, fleet: Connections, node: Node) -> None:
        self.fleet, self.node = fleet, node
        self._lock = threading.Lock()  # Connections may be asked by one thread for each node

    def session(self) -> Any:
        """A new channel to the node, for one command. SshError."""
        with lost_is_ssh_error(self.node), self._lock:
            return self.fleet.connection(self.node).create_session()

    def dial(self, port: int) -> Any:
        """A channel (recv, sendall, shutdown_write, close) to a port. NobodyListens, or SshError for a node that is not
        reached."""
        try:
            return self._once(port)
        except _Lost:
            pass  # it may have been lost long ago: now it is made anew
        try:
            return self._once(port)
        except _Lost as error:
            raise SshError(f"{self.node.name}: the connection was lost: {error}") from None

    def _once(self, port: int) -> Any:
        with self._lock:
            connection = self.fleet.connection(self.node)
        if not isinstance(connection, StrictConnection):
            return _through_pod(connection, port)
        try:
            return _through_sshd(connection, port)
        except (paramiko.SSHException, EOFError, OSError) as error:
            connection.close()
            raise _Lost(str(error) or "it was closed") from None


def _through_sshd(connection: StrictConnection, port: int) -> Any:
    try:
        # By name: it may listen on the IPv6 loopback alone.
        return connection.transport.open_channel(
            "direct-tcpip", ("localhost", port), ("127.0.0.1", 0), timeout=_SECONDS
        )
    except paramiko.ChannelException as error:
        raise NobodyListens(error.text or "refused") from None


def _through_pod(connection: Connected, port: int) -> Any:
    """KubeError, an SshError, if the pod is not reached."""
    channel = connection.create_session()
    try:
        channel.exec_command(f"exec python3 -I -S -c {shlex.quote(_RELAY)} {port}")
        channel.settimeout(_SECONDS)
        if not channel.recv(1):
            raise NobodyListens(last_words(channel, "refused"))
        channel.settimeout(None)
    except BaseException as error:
        channel.close()
        if isinstance(error, OSError):
            raise SshError(f"{connection.node.name}: port {port}: {error}") from None
        raise
    return channel
