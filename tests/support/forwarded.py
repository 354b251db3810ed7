"""A verb that forwards a port until Ctrl-C, used and ended by a test."""

from __future__ import annotations

import os
import re
import signal
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sshd
from invoke.context import Context
from polling import until

from fabfile.verbs.tunnel import tunnel


def get(address: str, path: str = "/") -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        return bytes(answer.read())


class Watched:
    """Does something in a thread with the address of what a verb of this one forwards, then presses Ctrl-C."""

    def __init__(self, capsys: pytest.CaptureFixture[str], use: Callable[[str], None], body: Any = tunnel.body) -> None:
        self._body = body
        self.out, self._capsys, self._use = "", capsys, use
        self.error: BaseException | None = None

    def said(self) -> str:
        self.out += self._capsys.readouterr().out
        return self.out

    def until_said(self, text: str) -> None:
        until(lambda: text in self.said(), 20, lambda: self.out)

    def _drive(self) -> None:
        try:
            until(lambda: self.error or re.search(r"http://(\S+) (is|shows) ", self.said()), 60)
            found = re.search(r"http://(\S+) (is|shows) ", self.out)
            assert found
            self._use(found[1])
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self.error = error
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    def run(self, *words: str, **options: object) -> str:
        """Run the verb; what it printed."""
        driver = threading.Thread(target=self._drive)
        driver.start()
        self._body(Context(), *words, **options)
        driver.join(20)
        if self.error:
            raise self.error
        return self.said()


def end_sessions(server: sshd.Sshd) -> None:
    """Kill what serves the connections that are open now."""
    _, *found = server.processes()
    assert found
    for session in found:
        with suppress(ProcessLookupError):  # it ended with the one above it
            os.kill(session, signal.SIGKILL)


def fails(address: str) -> bool:
    try:
        return get(address) != b"here"
    except OSError:
        return True
