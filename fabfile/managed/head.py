"""What a manager asks of its job's head: the job's record, its lease, its decisions, and on which nodes the job is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.base import Backend, JobRecord, Unreachable
from fabfile.backends.ssh.head import lost_connections
from fabfile.managed.record import Record, me
from fabfile.output import duration

LEASE = 120.0
"""Seconds after its last word at which another machine may manage the job."""


class Head:
    """The job's head, asked over a connection that is kept. Each method raises Unreachable if it does not answer."""

    def __init__(self, connect: Callable[[], Backend], record: Record) -> None:
        self._connect, self.record = connect, record
        self.backend = connect()
        self.code = ""
        """The folder with the job's programs, as the head last said."""
        self.resizing = False
        """Whether the job has yet to go on on other nodes, as it was asked to."""

    def renew(self) -> None:
        """Connect anew: to the nodes that the stack has now."""
        backend = self._connect()
        self.close()
        self.backend = backend

    def close(self) -> None:
        """Close the connection; the lease stays as it is until it runs out."""
        self.backend.__exit__(None, None, None)

    def job(self) -> JobRecord | None:
        """The job's record; None if this head has no such job."""
        with lost_connections():
            return next((job for job in self._asked(self.backend.jobs) if job.id == self.record.job), None)

    def text(self) -> str:
        """The job's job.toml."""
        with lost_connections():
            return str(self._asked(lambda: self.backend.begun(self.record.job)).text)

    def stop(self) -> None:
        """Ask the job to end, with a checkpoint."""
        with lost_connections():
            self._asked(lambda: self.backend.stop(self.record.job, now=False))

    def order(self, *, seconds: float = LEASE, without: Collection[str] | None = None) -> None:
        """Renew the lease (0 seconds: give it up), hand over the decisions that the head does not have yet, and, with
        `without`, have the job go on on all of its nodes but these. Exit 1 if somebody else manages the job."""
        record = self.record
        new = record.decisions[record.sent :]
        order = {"who": me(), "instead_of": [record.manager], "seconds": seconds, "decisions": new}
        order["without"] = None if without is None else sorted(without)
        with lost_connections():
            answer: dict[str, Any] = self._asked(lambda: self.backend.manage(record.job, order))
        if "unknown" in answer:
            return
        if "holder" in answer:
            left = duration(max(0.0, float(answer["until"]) - time.time()))
            raise HeldByAnother(f"{record.job} is managed by {answer['holder']}, for at least {left} more")
        record.sent = len(record.decisions)
        record.manager = me()
        record.save()
        self.code, self.resizing = str(answer["code"]) or self.code, bool(answer["resizing"])

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """The answer. An Exit of the backend is about the head, which may answer again."""
        try:
            return ask()
        except Exit as error:
            raise Unreachable(str(error.message)) from None


class HeldByAnother(Exit):
    """Another machine manages the job. Exit code 1, and one line."""

    def __init__(self, line: str) -> None:
        super().__init__(line, code=1)
