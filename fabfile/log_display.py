"""Follow a job's log on the screen to the job's end, across lost connections: all lines, every Nth step, or the steps
on one live line of a terminal."""

from __future__ import annotations

import re
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TextIO

from invoke.exceptions import Exit

from fabfile.backends.base import AnotherMachine, Backend, JobRecord, LogRequest, Unreachable
from fabfile.output import hint, is_terminal, prefixed, say, width, write
from fabfile.remote.openssh import MEET, STRANGER
from fabfile.step_line import StepLine

_AGAIN = 1.0
_PATIENCE = 300.0  # seconds without an answer after which the following of a job is given up
_STEP = re.compile(r"step (\d+)/(\d+) loss ")
_VALIDATION = " val "


class Shown:
    """Prints log lines. With `every` None a terminal has one live line of steps below all others, see
    fabfile/step_line.py; elsewhere all lines are printed. A step with a validation loss, the last step, and any other
    line are always printed as lines of their own."""

    def __init__(self, every: int | None = 1, label: str = "", silent: threading.Event | None = None) -> None:
        """`label` stands before the node's name. Nothing is printed once `silent` is set."""
        self._label, self._silent = f"{label} " if label else "", silent or threading.Event()
        self._every = every or 1
        self._live = every is None and is_terminal(sys.stdout)
        self._steps = StepLine()
        self._is_drawn = False
        self._has_hinted = False

    def line(self, node: str, rank: str, text: str) -> None:
        """Print `[node2 rank=1] step 40/200 ...`, with the name that `ssh node2` accepts."""
        if self._silent.is_set():
            return
        who = self._label + (node if rank == "-" else f"{node} rank={rank}")
        step = _STEP.match(text)
        is_last = step is not None and step[1] == step[2]
        passing = step is not None and not is_last and _VALIDATION not in text
        if self._live and step is not None:
            self._steps.read(text)
        if passing and self._live:
            self._draw()
        elif not passing or int(step[1]) % self._every == 0:  # type: ignore[index] # a step, as it passes
            self._print(prefixed(who, text), goes_on=not is_last)
        if STRANGER in text and not self._has_hinted:
            self._has_hinted = True
            self.warn(hint(MEET))

    def warn(self, text: str) -> None:
        """Print a line about the connection, not from the log."""
        if not self._silent.is_set():
            self._print(text, file=sys.stderr)

    def close(self) -> None:
        """End the live line, so that later output starts on a new line."""
        if self._is_drawn:
            self._is_drawn = False
            write("\n")

    def _draw(self) -> None:
        write(self._steps.text(width()), over=True)
        self._is_drawn = True

    def _print(self, text: str, *, file: TextIO | None = None, goes_on: bool = True) -> None:
        """Print a line above the live one, which is drawn again unless the job has made its last step."""
        was_drawn = self._is_drawn
        if was_drawn:
            self._is_drawn = False
            write("", over=True)
        say(text, file=file)
        if was_drawn and goes_on:
            self._draw()


def show(
    backend: Backend,
    request: LogRequest,
    every: int | None = 1,
    label: str = "",
    silent: threading.Event | None = None,
    leave_out: str = "",
) -> JobRecord:
    """Print a log's lines until the job is over, or, without `follow`, the existing ones; returns the job at the end.
    After a lost connection it connects again, and no line is lost or printed twice; Exit 1 if that takes too long, or
    if another machine answers. `every`, `label`, `silent`: see Shown. `leave_out`: how the launcher's lines begin that
    are not printed; empty: all are."""
    lost, now = 0.0, request
    with closing(Shown(every, label, silent)) as shown:
        while True:
            try:
                for part in backend.logs(now):
                    lost = 0.0
                    for line in part.lines:
                        if leave_out and line.rank == "-" and line.text.startswith(leave_out):
                            continue
                        shown.line(line.node, line.rank, line.text)
                    if part.cursor is not None:
                        since = request.since if part.cursor == request.cursor else 0.0
                        now = replace(now, cursor=part.cursor, tail=-1, since=since)
                    if part.job is not None:
                        return part.job
            except Unreachable as error:
                if not lost:
                    shown.warn(f"connection to {backend.host} lost, trying again: {error}")
                lost = lost or time.monotonic()
                if isinstance(error, AnotherMachine) or time.monotonic() - lost > _PATIENCE:
                    again = f"next: fab logs {request.job} --follow"
                    raise Exit(f"{backend.host}: {error}\n{again}", code=1) from None
                time.sleep(_AGAIN)
