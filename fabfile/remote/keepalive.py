"""Whether the far end of an SSH connection is still there: asked every INTERVAL seconds, given up after DEAD seconds.

Without this a verb waits for ever when the network goes, or a node stops without a word: TCP by itself notices only
after many minutes, or never while nothing is sent. paramiko's own keepalive sends, but does not look for an answer.
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
DEAD = 60.0
"""As OpenSSH's ServerAliveInterval times ServerAliveCountMax in fabfile/remote/openssh.py."""


class WatchedTransport(paramiko.Transport):
    """A transport that ends itself when nothing at all has come from the far end for DEAD seconds."""

    def __init__(self, sock: Any, **kwargs: Any) -> None:
        super().__init__(sock, **kwargs)
        self.heard = time.monotonic()
        self.lost = ""
        """Why it was given up; empty: it was not."""
        read = self.packetizer.read_message

        def noted() -> Any:
            message = read()
            self.heard = time.monotonic()  # whatever it is: somebody is there
            return message

        self.packetizer.read_message = noted  # type: ignore[method-assign]

    def watch(self) -> None:
        """From now on, after the login: the handshake has limits of its own."""
        self.heard = time.monotonic()
        this = weakref.ref(self)
        self.packetizer.set_keepalive(INTERVAL, lambda: _ask(this))
        # A thread of its own: that of the transport may hang in sending to a far end that takes nothing any more.
        threading.Thread(target=_watch, args=(this,), daemon=True).start()

    def give_up(self) -> None:
        """End the connection: whoever waits for something on it hears so at once."""
        self.lost = f"no sign of life for {DEAD:g} s"
        self.saved_exception = paramiko.SSHException(self.lost)
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self.packetizer.close()


def why_lost(channel: Any) -> str:
    """Why a channel has ended without its command's exit code."""
    return getattr(getattr(channel, "transport", None), "lost", "") or "the connection was lost"


def _ask(this: weakref.ref[WatchedTransport]) -> None:
    """Ask for an answer, any answer. Runs in the transport's own thread while nothing comes."""
    transport = this()
    if transport is None or not transport.clear_to_send.is_set():
        return  # it exchanges keys just now: that is life enough, and only this thread can end it
    message = paramiko.Message()
    message.add_byte(cMSG_GLOBAL_REQUEST)
    message.add_string("keepalive@openssh.com")
    message.add_boolean(True)  # every server has to answer, if only that it does not know the request
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
