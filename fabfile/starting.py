"""What `fab train` and `fab launch` share: choose the nodes, submit the job, and say what goes on after Ctrl-C."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from invoke.exceptions import Exit

from fabfile.backends.base import Backend, CannotStart, JobNode
from fabfile.backends.submission import Submission, Submitted
from fabfile.output import interrupted_later, say

INTERRUPTED = 130
HELP = {
    "nodes": "how many nodes; default: all",
    "queue": "wait for nodes that another job has",
    "detach": "do not follow the job",
    "dry-run": "print what would run, and touch nothing",
}
"""Help of the options that both verbs have. What --restarts, --resume and --time-limit mean differs."""


def choose(backend: Backend, count: int | None) -> tuple[JobNode, ...]:
    """The first `count` nodes, with the head; None: all. Exit 2 for more than there are."""
    there = backend.nodes()
    if count is not None and not 1 <= count <= len(there):
        raise Exit(f"--nodes {count}: {backend.name} has {len(there)}; leave it out for all of them", code=2)
    return there[:count]


def start(backend: Backend, submission: Submission, started: list[Submitted], again: str, what: str = "") -> None:
    """Prepare and submit. `started` gets the job, also if Ctrl-C comes during the submission. `again`: the command that
    waits for busy nodes, for a message; `what`: what runs, if that is not a rank for each slot."""
    try:
        if submission.job and submission.job.memory:
            say(submission.job.memory)
        backend.prepare(submission)
        with interrupted_later():
            started.append(backend.submit(submission))
            chosen = backend.nodes()[: submission.nodes]
            where, ranks = started[0].where or ", ".join(node.name for node in chosen), sum(one.ranks for one in chosen)
            what = what or (f"{ranks} ranks" if ranks > 1 else "1 rank")
            say(f"{started[0].id}: {what} on {where}")
    except CannotStart as busy:
        raise Exit(f"{busy}\nnext: fab jobs   (or wait for the nodes: {again})", code=1) from None


def goes_on(job: str) -> str:
    """What is said of a job that is not followed any more."""
    return f"{job} goes on without you\nnext: fab logs {job} --follow   (stop: fab stop {job})"


@contextlib.contextmanager
def ctrl_c_says_what_runs(started: Sequence[Submitted], said: Callable[[str], str] = goes_on) -> Iterator[None]:
    """Ctrl-C ends the verb, not the job: print that the job goes on, as `said`, or that none was started."""
    try:
        yield
    except KeyboardInterrupt:
        line = "interrupted: no job was started"
        if started:
            line = said(started[0].id)
        raise Exit(f"\n{line}", code=INTERRUPTED) from None
