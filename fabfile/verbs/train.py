"""`fab train`: start a job from its file and follow it to its end, on all nodes or some."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends, clusters_together, sweep
from fabfile import resume as resuming
from fabfile.backends.base import Backend, JobRecord, JobState, LogRequest
from fabfile.backends.submission import Submission, Submitted
from fabfile.clusters_together import Wanted
from fabfile.command_line import AtLeast
from fabfile.job_file import Ranks, find, known_jobs, resolve, setting
from fabfile.log_display import show
from fabfile.managed import start as managing
from fabfile.managed.bounds import TRIES
from fabfile.managed.record import Record
from fabfile.output import next_command, say
from fabfile.starting import HELP, choose, ctrl_c_says_what_runs, start
from fabfile.verbs.jobs import seconds

LOSSES = 8
"""How often an elastic job may lose ranks unless --restarts says so."""


@task(
    iterable=["set_", "with_"],
    positional=["job"],
    help={
        **HELP,
        "job": "a job's TOML file, or the name of one in training/jobs",
        "set": "section.key=value, over the file; also without --set",
        "resume": "go on with this job (its id, its number, latest) from its last checkpoint, with its own settings",
        "every": "show each Nth step; default: one live line on a terminal, all steps elsewhere",
        "restarts": "how often to start again, from the last checkpoint and on the nodes that are left; "
        "default: 0, as nothing makes a lost node again; on Kubernetes, where pods come again, 3, after losses alone",
        "elastic": "a lost rank ends nothing: the others go on at once, and it joins again (--restarts times, or 8)",
        "launcher": "mpirun, or torchrun for one node; a cluster with Slurm has its own",
        "with": "another stack (or inventory file) that trains the same job; each by itself, they meet in a bucket",
        "exchange": "with --with: a folder in a bucket that all clusters read and write; default: in this cluster's",
        "each": "a job for each value of keys that have several, as train.lr=1e-3,6e-4; compared at the end",
        "time-limit": "30m, 12h, 2d: stop it, with a checkpoint, before it has run for so long",
        "managed": "stay, replace nodes that are lost, and move the job back to all of its nodes",
        "max-usd": "with --managed: stop it, with a checkpoint, when its nodes have cost so much",
        "max-hours": "with --managed: the same when it has run for so long",
        "tries": f"with --managed: how many replacements and restarts, together; default: {TRIES}",
        "zones": "with --managed: where else all nodes may be made if the stack's zone has no room: a,b",
        "types": "with --managed: as which other types of machine",
        "yes": "with --managed: do not ask before nodes are replaced",
    },
)
def train(
    _c: Context,
    job: str = "",
    set_: Sequence[str] | None = None,
    nodes: Annotated[int, AtLeast(1)] | None = None,
    resume: str = "",
    detach: bool = False,
    every: Annotated[int, AtLeast(1)] | None = None,
    queue: bool = False,
    dry_run: bool = False,
    restarts: Annotated[int, AtLeast(0)] | None = None,
    elastic: bool = False,
    launcher: str = "",
    time_limit: str = "",
    with_: Sequence[str] | None = None,
    exchange: str = "",
    managed: bool = False,
    max_usd: float | None = None,
    max_hours: float | None = None,
    tries: Annotated[int, AtLeast(1)] | None = None,
    zones: str = "",
    types: str = "",
    yes: bool = False,
    each: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Train on the cluster: JOB section.key=value ..., or --resume ID; follows the job, which goes on without you."""
    manager = managing.Options(
        stack=stack, inventory=inventory, detach=detach, every=every, max_usd=max_usd, max_hours=max_hours,
        tries=tries, zones=zones, types=types, yes=yes, elastic=elastic,
    )  # fmt: skip
    manager.check(managed)
    _check(job, resume, managed=managed, each=each, with_=bool(with_ or exchange), elastic=elastic)
    overrides = set_ or ()
    prepare = shlex.join(["fab", "prepare", job or "JOB", *overrides])
    default = manager.bounds.tries if managed else LOSSES if elastic else None
    asked = Asked(
        job=job, nodes=nodes, elastic=elastic, launcher=launcher, queue=queue, on_first=managed, prepare=prepare,
        restarts=default if restarts is None else restarts, time_limit=seconds(time_limit, "--time-limit"),
    )  # fmt: skip
    if each:
        sweep.train(stack, inventory, sweep.Wanted(overrides, asked.submission, every, detach, dry_run))
    elif with_ or exchange:
        wanted = Wanted(job, overrides, resume, exchange, asked.submission, every, detach, dry_run)
        clusters_together.train(stack, inventory, with_ or (), wanted)
    else:
        (_train_managed if managed else _train)(asked, manager, overrides, resume, dry_run=dry_run)


def _check(job: str, resume: str, *, managed: bool, each: bool, with_: bool, elastic: bool) -> None:
    """Exit 2 without a job, for one that is not known (said before there is a cluster), and for options that do not go
    together."""
    if not (job or resume):
        raise Exit(f"which job? fab train JOB, or fab train --resume ID; {known_jobs()}", code=2)
    if job:
        find(job)
    if managed and (each or with_):
        raise Exit("--managed: holds one job on one cluster: not with --with or --each", code=2)
    if each and (resume or with_):
        raise Exit("--each: makes new jobs on one cluster: not with --resume or --with", code=2)
    if elastic and with_:
        raise Exit("--elastic: not with --with, which starts the job again instead", code=2)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the options ask of a job, or of each of several."""

    job: str
    nodes: int | None
    elastic: bool
    launcher: str
    queue: bool
    restarts: int | None
    """None: as the cluster's backend has it."""
    time_limit: float
    on_first: bool
    prepare: str

    def submission(self, backend: Backend, wanted: str, overrides: Sequence[str]) -> Submission:
        """The job from its file, or, if one is `wanted`, that one with its own settings."""
        return replace(
            _submission(backend, wanted, self.job, overrides, self.nodes, elastic=self.elastic),
            launcher=self.launcher,
            queue=self.queue,
            restarts=backend.restarts if self.restarts is None else self.restarts,
            after_losses_only=self.restarts is None,
            time_limit=self.time_limit,
            on_first=self.on_first,
            prepare=self.prepare,
        )


def _train(asked: Asked, given: managing.Options, overrides: Sequence[str], resume: str, *, dry_run: bool) -> None:
    """Start a job and follow it to its end."""
    started: list[Submitted] = []
    with ctrl_c_says_what_runs(started), backends.connect(given.stack, given.inventory) as backend:
        submission = asked.submission(backend, resume, overrides)
        plan = backend.plan(submission)
        if dry_run:
            say(plan)
            return
        start(backend, submission, started, "fab train ... --queue")
        job = started[0].id
        if given.detach:
            say(next_command(f"fab logs {job} --follow   (stop: fab stop {job})"))
            return
        ended = show(backend, LogRequest(job, cursor=started[0].cursor), given.every)
    end(ended)


def _train_managed(
    asked: Asked, manager: managing.Options, overrides: Sequence[str], resume: str, *, dry_run: bool
) -> None:
    """Start a job and manage it to its end, or take over one of before."""
    started: list[Submitted] = []
    with (
        ctrl_c_says_what_runs(started, managing.how_to_go_on),
        backends.connect(manager.stack, manager.inventory) as backend,
    ):
        there = managing.known(manager, backend, resume) if not overrides else None
        # What the command line names on this machine: a resumed job's own job.toml is its head's.
        text = resolve(asked.job, overrides, 1).text if asked.job else ""
        if there is not None:
            started.append(Submitted(there.id))
            end(_take_over(manager, backend, there, text))
            return
        if asked.elastic:
            managing.check_elastic(manager.stack)
        submission = asked.submission(backend, resume, overrides)
        plan = backend.plan(submission)
        if dry_run:
            say(plan)
            return
        facts = managing.agree(manager, backend, submission.mirror, submission.nodes)
        start(backend, submission, started, "fab train ... --queue")
        record = managing.record_of(manager, backend, started[0].id, submission.nodes, text)
        ended = _managed(manager, facts, record, started[0].cursor)
    end(ended)


def _take_over(manager: managing.Options, backend: Backend, job: JobRecord, text: str) -> JobRecord:
    """Manage a job of before, which is resumed if it is over; returns its record at its end. `text`: as in
    `managing.record_of`."""
    begun = backend.begun(job.id)
    if not begun.text:
        raise Exit(f"--managed: {job.id} has no job.toml: only the trainer's jobs are managed", code=2)
    manager = replace(manager, elastic=manager.elastic or begun.elastic)
    if manager.elastic:
        managing.check_elastic(manager.stack)
    nodes = begun.nodes if begun.nodes > 0 else len(backend.nodes())  # of no node there would be no cost
    facts = managing.agree(manager, backend, setting(begun.text, "checkpoint", "mirror"), nodes, is_known=True)
    record = managing.record_of(manager, backend, job.id, nodes, text)
    return _managed(manager, facts, record, None, resume=job.state.is_final)


def _managed(
    manager: managing.Options, facts: Mapping[str, Any], record: Record, cursor: int | None, *, resume: bool = False
) -> JobRecord:
    """Manage a job to its end, with its own settings: see `managing.manage`."""

    def resubmit(there: Backend, job: str, nodes: int) -> Submission:
        """The job on so many of the first nodes."""
        submission = _submission(there, job, "", (), nodes, elastic=manager.elastic)
        return replace(submission, restarts=record.bounds.tries, on_first=True)

    return managing.manage(manager, facts, record, resubmit, cursor, resume=resume)


def _submission(
    backend: Backend, wanted: str, job: str, overrides: Sequence[str], count: int | None, *, elastic: bool
) -> Submission:
    """A job from its file `job`, or, if a job is `wanted`, that one with its own settings."""
    if not wanted:
        chosen = choose(backend, count)
        resolved = resolve(job, overrides, Ranks.on(chosen), backend.mirror, elastic=elastic)
        return Submission(job=resolved, nodes=len(chosen), elastic=elastic)
    begun = resuming.begun(backend, wanted, job, overrides)
    there = backend.nodes()
    chosen = there[: resuming.nodes(begun, len(there), len(choose(backend, count)) if count else 0)]
    settings = resuming.settings(begun, job, overrides, Ranks.on(chosen), elastic=elastic)
    return Submission(job=settings, nodes=len(chosen), begun=begun, elastic=elastic)


def end(job: JobRecord) -> None:
    """Print the next command and exit with the job's exit code."""
    if job.state == JobState.SUCCEEDED:
        say(next_command(f"fab sample {job.id} --prompt ...   (files: fab fetch {job.id})"))
        return
    raise Exit(f"next: fab logs {job.id}   (go on: fab train --resume {job.id})", code=job.exit_code or 1)
