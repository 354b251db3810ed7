"""Detect a lost SSH connection: probe the far end every INTERVAL seconds, give it up after DEAD seconds of silence.

Without this a verb hangs when a node dies: TCP notices only after many minutes, or never while nothing is sent, and
paramiko's own keepalive does not check for an answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Any

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST

INTERVAL = 15.0
DEAD = 60.0  # the product of ServerAliveInterval and ServerAliveCountMax in fabfile/remote/openssh.py


class WatchedTransport(paramiko.Transport):
    """A transport that closes itself after DEAD seconds without any message from the far end."""

    def __init__(self, sock: Any, **kwargs: Any) -> None:
        super().__init__(sock, **kwargs)
        self.heard = time.monotonic()
        self.lost = ""  # why the connection was given up; empty: it was not
        read = self.packetizer.read_message

        def noted() -> Any:
            message = read()
            self.heard = time.monotonic()  # any message shows that the far end is alive
            return message

        self.packetizer.read_message = noted  # type: ignore[method-assign]

    def watch(self) -> None:
        """Start watching. Called after the login: the handshake has its own time limits."""
        self.heard = time.monotonic()
        this = weakref.ref(self)
        self.packetizer.set_keepalive(INTERVAL, lambda: _ask(this))
        # A separate thread: the transport's own may block while it sends to a far end that no longer reads.
        threading.Thread(target=_watch, args=(this,), daemon=True).start()

    def give_up(self) -> None:
        """Close the connection, so that every reader waiting on it fails at once."""
        self.lost = f"no sign of life for {DEAD:g} s"
        self.saved_exception = paramiko.SSHException(self.lost)
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self.packetizer.close()


def why_lost(channel: Any) -> str:
    """Why a channel has ended without its command's exit code."""
    return getattr(getattr(channel, "transport", channel), "lost", "") or "the connection was lost"


def _ask(this: weakref.ref[WatchedTransport]) -> None:
    """Send a request that the far end must answer. Runs in the transport's own thread while nothing comes."""
    transport = this()
    if transport is None or not transport.clear_to_send.is_set():
        return  # a key exchange is under way: the far end is alive, and only this thread can finish it
    message = paramiko.Message()
    message.add_byte(cMSG_GLOBAL_REQUEST)
    message.add_string("keepalive@openssh.com")
    message.add_boolean(True)  # want reply: a server must answer, even to a request that it does not know
    transport._send_user_message(message)  # type: ignore[attr-defined]


def _watch(this: weakref.ref[WatchedTransport]) -> None:
    while True:
        transport = this()
        if transport is None or not transport.is_active():
            return
        if time.monotonic() - transport.heard > DEAD:
            transport.give_up()
            return
        del transport
        time.sleep(min(1.0, DEAD / 10))
