"""Before nodes are removed, print which jobs run on them and which runs are on their disks."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Sequence

from invoke.exceptions import Exit

from fabfile import backends, targets
from fabfile.backends.base import Backend, JobRecord
from fabfile.output import hint, say
from fabfile.stacks import pulumi_cli

CONNECT_S = 10.0  # seconds to reach the head and log in: a dead cluster must be quick to destroy
ANSWER_S = 20.0
"""Seconds for a reached head to list its jobs; includes the copying of this checkout's programs."""
_NODE = re.compile(r"node[0-9]+")
_GOES = re.compile(r"^\s*(node[0-9]+): (?:- delete|\+- replace)", re.MULTILINE)
"""A line of the embedded engine's preview."""


def say_of_destroy(stack: str) -> None:
    """Print the jobs on the stack's nodes and the runs on their disks, or that the head does not answer."""
    backend = _backend(stack)
    if backend:
        jobs = jobs_of(backend) or []
        _say(jobs, jobs, None)


def say_of_up(stack: str, cloud: str) -> None:
    """Print which nodes an `up` removes or replaces, and which jobs and runs are lost with them. `cloud` is empty for a
    local stack. Prints nothing if the cluster is not up or has no jobs."""
    backend = _backend(stack)
    if not backend:
        return
    jobs = jobs_of(backend)
    if jobs == []:
        return  # nothing can be lost, so no preview is needed
    say("checking which nodes this `up` removes or replaces (a preview)")
    gone = nodes_that_go(stack, cloud)
    if gone:
        say(f"this `up` removes or replaces {', '.join(gone)}")
        head = backend.nodes()[0].name
        _say(jobs or [], [job for job in jobs or [] if (job.files_on or head) in gone], gone)


def nodes_that_go(stack: str, cloud: str) -> list[str]:
    """The nodes that the next `up` deletes or replaces, by a preview. Empty, after a message, if that fails."""
    try:
        if not pulumi_cli.has_pulumi():
            return sorted(set(_GOES.findall(pulumi_cli.ask(pulumi_cli.module("state.engine", "preview", stack)))))
        argv = ["pulumi", "preview", "--json", "--refresh", "--stack", stack]
        preview = json.loads(pulumi_cli.ask(argv, **pulumi_cli.plugins(cloud)))
        steps = [(str(step["urn"]).rpartition("::")[2], step["op"]) for step in preview.get("steps", [])]
    except (Exit, ValueError, KeyError) as error:
        say(f"which nodes it removes or replaces is not known: {_line(error)}")
        return []
    return sorted({name for name, op in steps if _NODE.fullmatch(name) and ("delete" in op or "replace" in op)})


def jobs_of(backend: Backend) -> list[JobRecord] | None:
    """The jobs of a cluster; None, after a message, if it does not answer in time."""
    reached = threading.Event()
    answer: list[list[JobRecord]] = []
    wrong: list[str] = []

    def ask() -> None:
        try:
            with backend:
                backend.reach()
                reached.set()
                answer.append(backend.jobs())
        except Exception as error:  # noqa: BLE001 (whatever is wrong with a node, it must not keep a destroy)
            wrong.append(_line(error))
        finally:
            reached.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    limit = ANSWER_S if reached.wait(CONNECT_S) else 0.0
    thread.join(limit)
    if answer:
        return answer[0]
    why = f"reached, but no answer within {limit:.0f} s" if limit else f"not reached within {CONNECT_S:.0f} s"
    _say_unknown(wrong[0] if wrong else f"{backend.host}: {why}")
    return None


def _backend(stack: str) -> Backend | None:
    """The backend of the stack's cluster; None if it is not up, or, after a message, if it cannot be used."""
    try:
        text = pulumi_cli.stack_output(stack)
    except Exit:
        return None
    try:
        return backends.of(targets.parse_any(text, f"stack {stack}"), CONNECT_S)
    except Exit as error:
        _say_unknown(_line(error))
        return None


def _say_unknown(why: str) -> None:
    say(f"what runs on the nodes is not known: {why}")


def _line(error: Exception) -> str:
    """An error's message, in one line of at most 200 characters."""
    text = str(error.message if isinstance(error, Exit) else error) or type(error).__name__
    return " ".join(text.split())[:200]


def _say(jobs: Sequence[JobRecord], runs: Sequence[JobRecord], gone: Collection[str] | None) -> None:
    """Print the jobs that end when these nodes, or all (None), go, and the `runs` whose files go with them."""
    for job in jobs:
        if not job.state.is_final and (gone is None or set(job.nodes) & set(gone)):
            say(f"job {job.id} is {job.state} on {', '.join(job.nodes) or 'no node yet'}: it ends with them")
    if runs:
        names = ", ".join(job.id for job in runs[-8:])
        more = f" and {len(runs) - 8} more" if len(runs) > 8 else ""
        say(hint(f"runs on their disks go with them: {names}{more}  (fab fetch ID brings one here)"))
