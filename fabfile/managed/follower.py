"""Show a managed job's log while its manager does other things."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from invoke.exceptions import Exit

from fabfile.backends.base import Backend, LogRequest
from fabfile.log_display import show
from fabfile.output import say
from fabfile.remote.known_hosts import SshError

OWN = "managed: "
"""How the log's lines begin that the manager itself has printed already."""
_AGAIN = 5.0
_JOIN = 10.0


class Follower:
    """Follows the log in a thread, with a connection of its own, across heads that are replaced."""

    def __init__(self, connect: Callable[[], Backend], job: str, cursor: int, tail: int, every: int | None) -> None:
        self._connect, self._every = connect, every
        self._request = LogRequest(job, cursor=cursor, tail=tail)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._over = threading.Event()
        self._thread.start()

    def wait(self) -> None:
        """Wait until the lines of a job that is over are shown, but not for long."""
        self._over.set()
        self._thread.join(_JOIN)

    def _run(self) -> None:
        request = self._request
        while not self._over.is_set():
            try:
                with self._connect() as backend:
                    show(backend, request, self._every, leave_out=OWN)
            except (Exit, SshError, OSError) as error:
                if self._over.is_set():
                    return
                why = getattr(error, "message", error)
                say(f"the log of {request.job} cannot be followed now, lines may be missing here: {why}")
            # The job may be resumed, by this manager or by hand: then its log goes on.
            left = time.time()
            self._over.wait(_AGAIN)
            request = LogRequest(request.job, since=time.time() - left)
