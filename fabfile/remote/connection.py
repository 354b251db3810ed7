"""A strict SSH connection: by key only, only to a machine whose host key is known, with the inventory's settings alone.

Fabric by default accepts every host key (fabric#2071) and reads the operator's ~/.ssh/config.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection  # type: ignore[import-untyped]
from invoke.exceptions import Exit
from paramiko.pkey import UnknownKeyType

from fabfile.remote.keepalive import WatchedTransport
from fabfile.remote.known_hosts import HostKeyMismatch, HostKeyUnknown, SshError, fingerprint, trusted_files
from fabfile.remote.openssh import jump_node, user_of
from infra.inventory import Node, SshCluster

# Without a handler, logging prints paramiko's traceback of every refused connection.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

NOWHERE = "0.0.0.0"
"""The address, in an inventory that a program has made, of a node that is not reached over SSH."""
_HANDSHAKE_SECONDS = 30.0
"""Limit for key exchange and login after the TCP connection: many nodes may be booting on few cores."""


class Tunnel:
    """A channel through the jump host, used as a socket. Closing it after the jump host is lost is no error."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def close(self) -> None:
        """Close the channel, also one that is lost."""
        with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
            self._channel.close()


class StrictConnection(Connection):  # type: ignore[misc]
    """A fabric.Connection that can reach only the one node of the inventory that it was made for."""

    def __init__(self, cluster: SshCluster, node: Node, timeout: float, via: StrictConnection | None) -> None:
        super().__init__(
            node.address,
            user=user_of(cluster, node),
            port=node.ssh_port,
            config=_fabric_config().clone(),
            forward_agent=False,
        )
        self._set(_cluster=cluster, node=node, _timeout=timeout, _via=via, _own_via=None, _socket=None)
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())

    def open(self) -> None:
        """Log in, unless it is open. SshError says why that failed, HostKeyError whose key was offered."""
        if self.is_connected:
            return
        for file in trusted_files(self._cluster, self.node):
            if file.is_file():
                self.client.load_host_keys(str(file))
        try:
            self._login(self._dial())
        except BaseException:
            self.close()
            raise
        transport = self.client.get_transport()
        assert isinstance(transport, WatchedTransport)
        transport.watch()
        self.transport = transport

    def close(self) -> None:
        """Close it, and a connection to the jump host that it has opened itself."""
        # Shutting the socket wakes paramiko's thread at once; otherwise it notices 0.1 s later.
        if self._socket is not None:
            shut(self._socket)
        super().close()
        self.client.close()
        if self._own_via is not None:
            self._own_via.close()

    def _dial(self) -> Any:
        node = self.node
        jump = jump_node(self._cluster)
        if jump is None or node == jump:
            self._socket = _tcp(node, self._timeout)
            return self._socket
        via = self._via
        if via is None:
            via = self._own_via = StrictConnection(self._cluster, jump, self._timeout, None)
            via.open()
        try:
            target = (node.address, node.ssh_port)
            return Tunnel(via.transport.open_channel("direct-tcpip", target, ("", 0), timeout=self._timeout))
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise SshError(f"{where(node)}: not reached through the jump host {jump.address}: {error}") from None

    def _login(self, sock: Any) -> None:
        node, identity = self.node, self._cluster.identity_file
        try:
            self.client.connect(
                node.address,
                port=node.ssh_port,
                username=self.user,
                sock=sock,
                timeout=_HANDSHAKE_SECONDS,
                banner_timeout=_HANDSHAKE_SECONDS,
                auth_timeout=_HANDSHAKE_SECONDS,
                pkey=identity_of(identity) if identity else None,
                allow_agent=not identity,
                look_for_keys=not identity,
                transport_factory=_transport,
            )
        except paramiko.BadHostKeyException as error:
            expected, offered = (fingerprint(key.asbytes()) for key in (error.expected_key, error.key))
            raise HostKeyMismatch(
                f"{where(node)}: HOST KEY MISMATCH: expected {expected}, offered {offered}; nothing was sent: "
                "somebody else answers there, or the node was made again and the inventory is older"
            ) from None
        except paramiko.AuthenticationException as error:
            raise SshError(f"{where(node)}: sshd refuses user {self.user!r} with our key: {error}") from None
        except paramiko.SSHException as error:
            if "not found in known_hosts" in str(error):
                mend = "give host_key in the inventory, or check it and add it to ~/.ssh/known_hosts"
                raise HostKeyUnknown(f"{where(node)}: its host key is unknown: {mend}") from None
            raise SshError(f"{where(node)}: no SSH: {error}") from None
        except (OSError, EOFError) as error:
            raise SshError(f"{where(node)}: no SSH: {error or 'the connection was closed'}") from None


def connect(
    cluster: SshCluster, node: Node, timeout: float = 10, *, via: StrictConnection | None = None
) -> StrictConnection:
    """An open connection to one node, closed by the caller (it is a context manager). SshError says why there is none.
    `timeout`, in seconds, is for reaching it. `via` is an open connection to the jump host, shared by many nodes."""
    connection = StrictConnection(cluster, node, timeout, via)
    connection.open()
    return connection


@functools.cache
def _fabric_config() -> Any:
    return Config(ssh_config=paramiko.SSHConfig())  # an empty one: the operator's is not read


def _transport(sock: Any, **kwargs: Any) -> paramiko.Transport:
    """paramiko's transport, but with the SHA-2 RSA signatures first. paramiko prefers the type of the known key; for
    an RSA key a server without the old `ssh-rsa` would offer a key of another type: a false host key mismatch."""
    transport = WatchedTransport(sock, **kwargs)
    security = transport.get_security_options()
    known: Sequence[str] = security.key_types
    security.key_types = sorted(known, key=lambda name: not name.startswith("rsa-sha2"))
    return transport


def identity_of(file: str) -> paramiko.PKey:
    """The operator's private key; one with a passphrase must be loaded into the SSH agent."""
    path = Path(file).expanduser()
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        raise Exit(f"identity_file = {file!r}: there is no such file", code=2) from None
    except (paramiko.PasswordRequiredException, TypeError):
        public = path.with_name(path.name + ".pub")
        blob = public.read_text().split()[1] if public.is_file() else ""
        for key in paramiko.Agent().get_keys():
            if key.get_base64() == blob:
                return key
        raise Exit(f"identity_file = {file!r}: has a passphrase: add it to the agent first (ssh-add)", code=2) from None
    except (paramiko.SSHException, UnknownKeyType, OSError, ValueError) as error:
        raise Exit(f"identity_file = {file!r}: cannot be used: {error}", code=2) from None


def _tcp(node: Node, timeout: float) -> socket.socket:
    try:
        sock = socket.create_connection((node.address, node.ssh_port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each new session waits 40 ms for an ACK
        return sock
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        raise SshError(f"{where(node)}: {reason}") from None


def shut(sock: socket.socket) -> None:
    """Shut a socket down, unless the far end or paramiko has closed it already."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def where(node: Node) -> str:
    """`node2 (10.0.0.2:22)`; only the name of what has no address of its own."""
    if node.address == NOWHERE:
        return node.name
    return f"{node.name} ({node.address}:{node.ssh_port})"


def reason(error: Exception) -> str:
    """Why a connection broke; the errors of a time-out and of an end have no text of their own."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else "the far end closed it")


@contextlib.contextmanager
def lost_is_ssh_error(node: Node) -> Iterator[None]:
    """Turn the errors of paramiko and sockets into SshError, which names the node."""
    try:
        yield
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise SshError(f"{where(node)}: the connection was lost: {reason(error)}") from None
