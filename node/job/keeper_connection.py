"""The supervisor's connections to the keepers: it sends words and receives events."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from fabfile.launchers import SYSTEM_PYTHON
from node.job import files
from node.job.spec import KeeperSpec
from node.launcher import USELESS
from node.scope import ALIVE, STRICT

Event = dict[str, Any]
NodeEvent = tuple[str, Event | None]
"""(node, event); the event is None when the connection has ended."""

WAITING = 10_000
"""Events that may wait for the supervisor. While there are more, a keeper waits, and its ranks' lines on its disk."""
POLL = 0.1
"""Seconds that the supervisor waits for an event before it looks at all else."""
AT_ONCE = 1000
"""Events that it takes before that: a program may write lines as fast as they are read, and the keepers end their ranks
when the head does not beat."""


class Link(Protocol):
    """The connection to one node's keeper, for one attempt. Its events go into the attempt's queue."""

    node: str
    complaint: str
    """The last line that came with no event in it, which says why the connection ended; empty: there was none."""

    def say(self, word: str) -> None:
        """Send a word to the keeper. Ignores a broken connection, which is reported as an event."""

    def cut(self) -> None:
        """Close the connection. The keeper then ends its ranks, at the latest when its lease runs out."""


def wait_for_room(events: queue.SimpleQueue[NodeEvent], is_cut: Callable[[], bool]) -> None:
    """Wait until fewer than WAITING events wait, or nobody takes any more."""
    while events.qsize() > WAITING and not is_cut():
        time.sleep(0.01)


def arrived(events: queue.SimpleQueue[NodeEvent]) -> list[NodeEvent]:
    """The events that have arrived, AT_ONCE at most; waits up to POLL for the first."""
    found: list[NodeEvent] = []
    with suppress(queue.Empty):
        found.append(events.get(timeout=POLL))
        while len(found) < AT_ONCE:
            found.append(events.get_nowait())
    return found


class PipeLink:
    """A keeper that a program of ours runs on its node, such as ssh. `complaint` is the last line of its stderr, or of
    its stdout that is not JSON."""

    def __init__(self, spec: KeeperSpec, argv: list[str], events: queue.SimpleQueue[NodeEvent]) -> None:
        """`argv` runs the keeper on its node, with our pipes as its stdin and stdout."""
        self.node = spec.node
        self._events = events
        self.complaint = ""
        self._is_cut = False
        pipe = subprocess.PIPE
        # A session of its own: Slurm may signal the process group of this program, and the keeper must not hear it.
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
        )
        self.say(json.dumps(asdict(spec)))
        threading.Thread(target=self._hear, daemon=True).start()
        threading.Thread(target=self._hear_errors, daemon=True).start()

    def say(self, word: str) -> None:
        assert self._process.stdin
        with suppress(OSError, ValueError):
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()

    def cut(self) -> None:
        self._is_cut = True
        with suppress(OSError, ValueError):
            assert self._process.stdin
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _hear(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                self.complaint = line.strip() or self.complaint
                continue
            wait_for_room(self._events, lambda: self._is_cut)
            self._events.put((self.node, event))
        self._events.put((self.node, None))

    def _hear_errors(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            # srun's own last words, the exit code of what it ran, say less than what that said.
            if line.strip().endswith(USELESS):
                continue
            if line.strip() and not (self.complaint and line.startswith("srun: ")):
                self.complaint = line.strip()


def over_ssh(node: str, job: str, code: str) -> list[str]:
    """The command that runs the keeper of a job on a node reached over SSH."""
    return ["ssh", "-x", *STRICT, *ALIVE, node, _service(job, code)]


def _service(job: str, code: str) -> str:
    """The shell command that runs the keeper as a systemd service. Whatever ends it, systemd then kills the scope that
    is bound to it and removes the node's job record. Its priority is high, so that a rank that takes all of the node's
    CPU or memory does not make the node look dead."""
    unit = f"{files.unit_of(job)}-keeper"
    secrets = f"/run/trainyard-secrets-$(id -u)/{files.node_secrets_of(job).name}"
    return (
        f"exec sudo -n systemd-run --quiet --collect --pipe --wait --unit={unit} --uid=$(id -u) --gid=$(id -g)"
        f" --property=Nice=-5 --property=OOMScoreAdjust=-900 --property=TimeoutStopSec=5"
        f' --property="ExecStopPost=+/bin/rm -f {files.JOB} {secrets}" -- {SYSTEM_PYTHON} -I {code} keep'
    )
