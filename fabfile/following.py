"""Follow several jobs at the same time, each line with the job's label before it, until all are over."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from invoke.exceptions import Exit

from fabfile.backends.base import Backend, JobRecord, LogRequest
from fabfile.backends.submission import Submitted
from fabfile.log_display import show
from fabfile.output import OutputClosed
from fabfile.starting import INTERRUPTED


@dataclass(frozen=True)
class Followed:
    """A job that was started."""

    label: str  # before each of its lines
    backend: Backend  # of its own: it is used by a thread
    job: Submitted
    flag: str = ""  # what a command needs to find it, ` --stack b`

    @property
    def logs(self) -> str:
        """The command that comes back to it."""
        return f"fab logs {self.job.id} --follow{self.flag}"

    @property
    def stop(self) -> str:
        """The command that stops it."""
        return f"fab stop {self.job.id}{self.flag}"


def follow(jobs: Sequence[Followed], every: int | None) -> list[JobRecord | Exit]:
    """Print the jobs' logs until all are over; returns each as it is then, or why it could not be followed to its end.
    `every`: only each Nth step."""
    ended: queue.SimpleQueue[tuple[int, JobRecord | Exit]] = queue.SimpleQueue()  # safe against Ctrl-C, unlike Queue
    silent = threading.Event()
    for index in range(len(jobs)):
        threading.Thread(target=_follow, args=(jobs, index, every, ended, silent), daemon=True).start()
    found: dict[int, JobRecord | Exit] = {}
    try:
        while len(found) < len(jobs):
            with contextlib.suppress(queue.Empty):
                index, how = ended.get(timeout=0.5)
                if isinstance(how, OutputClosed):
                    raise how
                found[index] = how
    finally:
        silent.set()
    return [found[index] for index in range(len(jobs))]


def _follow(
    jobs: Sequence[Followed],
    index: int,
    every: int | None,
    ended: queue.SimpleQueue[tuple[int, JobRecord | Exit]],
    silent: threading.Event,
) -> None:
    one = jobs[index]
    try:
        request = LogRequest(one.job.id, cursor=one.job.cursor)
        ended.put((index, show(one.backend, request, every or 1, one.label, silent)))
    except Exit as error:
        ended.put((index, error))
    except Exception as error:  # noqa: BLE001 (the thread has no caller)
        ended.put((index, Exit(f"{one.label}: {type(error).__name__}: {error}", code=1)))


@contextlib.contextmanager
def ctrl_c_says_what_runs_of(jobs: Sequence[Followed]) -> Iterator[None]:
    """Ctrl-C ends the verb, not the jobs: print which go on, or that none was started."""
    try:
        yield
    except KeyboardInterrupt:
        named = (one.job.id if one.label == one.job.id else f"{one.label}: {one.job.id}" for one in jobs)
        lines = [f"{each} goes on without you" for each in named]
        lines += [f"next: {one.logs}   (stop: {one.stop})" for one in jobs]
        raise Exit("\n" + "\n".join(lines or ["interrupted: no job was started"]), code=INTERRUPTED) from None
