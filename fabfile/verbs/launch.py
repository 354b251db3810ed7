"""`fab launch`: run any program on the cluster, with its working directory, and follow it to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends, launch_file, user_program
from fabfile import resume as resuming
from fabfile.backends.base import Backend, JobRecord, JobState, LogRequest, find_job
from fabfile.backends.submission import Submission, Submitted
from fabfile.command_line import ArgumentForm, AtLeast
from fabfile.launchers.program import HEAD, NODE, Program
from fabfile.log_display import show
from fabfile.output import next_command, say
from fabfile.secret_names import keep_secret_names, kept_secret_names
from fabfile.starting import HELP, choose, ctrl_c_says_what_runs, start
from fabfile.user_program import Asked
from fabfile.verbs.jobs import seconds
from fabfile.workdir import snapshot


@task(
    iterable=["env", "secret"],
    positional=["command"],
    help={
        **HELP,
        "command": "the program and its arguments; after -- if one of these begins with a dash",
        "per": "slot: a process for each slot (the default); node: one on each node; head: one, on the first node",
        "restarts": "how often to start again, in its directory as it was left, on the nodes that are left; "
        "default: 0, also on Kubernetes: what checkpoints the program has is not known",
        "time-limit": "30m, 12h, 2d: stop it before it has run for so long",
        "workdir": "the folder that goes along, without what git ignores; default: this one",
        "requirements": "a file of more Python packages, in pip's form",
        "env": "a variable for the program; may be given several times",
        "secret": "a variable's name: its value is taken from here, and is on no disk; may be given several times",
        "file": "default: launch.toml of the working directory, if it has one",
        "name": "the job is called NAME-NUMBER; default: as the program is called",
        "grace": "seconds between SIGTERM and SIGKILL when it is stopped (default: 30)",
        "resume": "go on with this job (its id, its number, latest) in its directory as it was left",
        "yes": "send a very large directory without asking",
    },
)
def launch(
    _c: Context,
    command: Annotated[Sequence[str] | None, ArgumentForm("-- COMMAND ...")] = None,
    per: str = "",
    nodes: Annotated[int, AtLeast(1)] | None = None,
    queue: bool = False,
    restarts: Annotated[int, AtLeast(0)] = 0,
    detach: bool = False,
    time_limit: str = "",
    dry_run: bool = False,
    workdir: str = "",
    requirements: str = "",
    env: Sequence[str] | None = None,
    secret: Sequence[str] | None = None,
    file: str = "",
    name: str = "",
    grace: Annotated[float, AtLeast(0)] | None = None,
    resume: str = "",
    yes: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Run any program on the cluster, with its working directory; follows the job, which goes on without you."""
    started: list[Submitted] = []
    limit = seconds(time_limit, "--time-limit")
    asked = Asked(
        command=tuple(command or ()), name=name, per=per, environment=tuple(env or ()), secrets=tuple(secret or ()),
        requirements=requirements, grace=grace,
    )  # fmt: skip
    if resume:
        _refuse_with_resume(workdir=workdir, file=file)
    new = None if resume else _new(asked, workdir, file)  # what is wrong with it is said before there is a cluster
    with ctrl_c_says_what_runs(started), backends.connect(stack, inventory) as backend:
        if new is None:
            submission = _resumed(backend, resume, asked, nodes)
        else:
            submission = _submission(*new, len(choose(backend, nodes)), yes=yes or dry_run)
        submission = replace(submission, queue=queue, restarts=restarts, time_limit=limit)
        plan = backend.plan(submission)
        if dry_run:
            say(plan)
            return
        job = _start(backend, submission, started)
        if detach:
            say(next_command(f"fab logs {job} --follow   (stop: fab stop {job})"))
            return
        ended = show(backend, LogRequest(job, cursor=started[0].cursor))
    _end(ended)


def _new(asked: Asked, workdir: str, file: str) -> tuple[Program, Path]:
    """The program of a new job, without its working directory, and that folder."""
    written = launch_file.find(Path(workdir or ".").expanduser(), file)
    folder = Path(workdir or written.workdir or ".").expanduser().absolute()
    snapshot.check(folder)
    return user_program.new(asked, written), folder


def _submission(program: Program, folder: Path, nodes: int, *, yes: bool) -> Submission:
    """A new job, with the working directory as it is now."""
    taken = snapshot.scan(folder)
    snapshot.confirm(taken, yes=yes)
    program = replace(program, workdir=taken.hash)
    return Submission(program=program, own_requirements=True, snapshot=taken, nodes=nodes)


def _resumed(backend: Backend, wanted: str, asked: Asked, count: int | None) -> Submission:
    """A job of this cluster once more, in its directory as it was left."""
    begun = backend.begun(find_job(backend, wanted).id)
    sent = kept_secret_names(backend.name, begun.id) if begun.program else ()
    program = user_program.resumed(begun, asked, sent)
    there = len(backend.nodes())
    nodes = resuming.nodes(begun, there, len(choose(backend, count)) if count else 0)
    own = bool(asked.requirements)
    return Submission(program=program, own_requirements=own, begun=begun, nodes=nodes)


def _start(backend: Backend, submission: Submission, started: list[Submitted]) -> str:
    """Start the job, and record on this machine which secrets went with it; returns its id."""
    start(backend, submission, started, "fab launch --queue ...", _processes(backend, submission))
    job = started[0].id
    assert submission.program is not None
    keep_secret_names(backend.name, job, submission.program.secrets)
    return job


def _processes(backend: Backend, submission: Submission) -> str:
    """`3 processes of python train.py`"""
    program = submission.program
    assert program is not None
    slots = [node.ranks for node in backend.nodes()[: submission.nodes]]
    count = {NODE: len(slots), HEAD: 1}.get(program.per, sum(slots))
    return f"{count} process{'es' * (count > 1)} of {program.shell}"


def _refuse_with_resume(**given: str) -> None:
    for name, value in given.items():
        if value:
            why = "goes on in its directory as it was left, with what it was started with"
            raise Exit(f"--{name} {value}: a job that is resumed {why}: leave it out", code=2)


def _end(job: JobRecord) -> None:
    """Print the next command and exit with the program's exit code."""
    if job.state == JobState.SUCCEEDED:
        say(next_command(f"fab fetch {job.id}"))
        return
    raise Exit(f"next: fab logs {job.id}   (go on: fab launch --resume {job.id})", code=job.exit_code or 1)
