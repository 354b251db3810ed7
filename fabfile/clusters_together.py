"""`fab train JOB --with STACK2`: start one job on several clusters that meet in a bucket, and follow it on all of them.

Each cluster has its own inventory, head, job id and checkpoints: to each of them its part is a job like any other. How
the parts become one model is the trainer's (training/outer).
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from invoke.exceptions import Exit

from fabfile import backends
from fabfile.backends.base import NO_MIRROR, Backend, CannotStart, JobRecord, JobState
from fabfile.backends.submission import Submission
from fabfile.following import Followed, ctrl_c_says_what_runs_of, follow
from fabfile.job_file import resolve
from fabfile.output import interrupted_later, next_command, plural, say

SubmissionOf = Callable[[Backend, str, Sequence[str]], Submission]
"""Makes a cluster's submission: of the job with this id, or, if that is empty, of the new job with these overrides."""


_ANOTHER = "--exchange URL names a bucket that all clusters read and write"


@dataclass(frozen=True)
class Place:
    """A cluster that takes part."""

    name: str
    backend: Backend
    flag: str  # ` --stack b`, for a command
    wanted: str = ""  # the job there that is to go on; empty: found by the bucket's folder

    @property
    def ranks(self) -> int:
        """Of all its nodes, as its inventory has them."""
        return sum(node.ranks for node in self.backend.nodes())


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    job: str
    overrides: Sequence[str]
    resume: str
    exchange: str
    submission_of: SubmissionOf
    every: int | None
    detach: bool
    dry_run: bool


def train(stack: str, inventory: str, others: Sequence[str], wanted: Wanted) -> None:
    """Start the job on all clusters, follow it, and exit with its code."""
    if not others:
        raise Exit("--exchange: with which other cluster? --with STACK2", code=2)
    started: list[Followed] = []
    with ctrl_c_says_what_runs_of(started), contextlib.ExitStack() as opened:
        places = [_place(stack, inventory), *map(_other, others)]
        _check_names(places)
        for place in places:
            opened.enter_context(place.backend)
        submissions = _resumed(places, wanted) if wanted.resume else _new(places, wanted)
        plans = [place.backend.plan(each) for place, each in zip(places, submissions, strict=True)]
        if wanted.dry_run:
            for place, plan in zip(places, plans, strict=True):
                say(f"# {place.name}\n{plan}")
            return
        _start(places, submissions, started)
        if wanted.detach:
            for one in started:
                say(f"next: {one.logs}   (stop: {one.stop})")
            return
        ended = follow(started, wanted.every)
    _end(started, ended)


def _place(stack: str, inventory: str, wanted: str = "") -> Place:
    backend = backends.connect("" if inventory else stack, inventory)
    flag = f" --inventory {shlex.quote(inventory)}" if inventory else f" --stack {stack}"
    return Place(backend.name, backend, flag, wanted)


def _other(given: str) -> Place:
    """The cluster of `--with STACK`, or of an inventory file; `STACK:ID` names its job, too."""
    name, _, job = given.partition(":")
    is_file = "/" in name or name.endswith(".json")
    return _place("" if is_file else name, name if is_file else "", job)


def _check_names(places: Sequence[Place]) -> None:
    names = [place.name for place in places]
    for name in names:
        if names.count(name) > 1:
            raise Exit(f"--with {name}: it is named twice; allowed: another cluster than {name}", code=2)


def _new(places: Sequence[Place], wanted: Wanted) -> list[Submission]:
    """The submissions of a new job: the same settings but for the cluster's number."""
    own = tomllib.loads(resolve(wanted.job, wanted.overrides, 1).text)
    ranks = [place.ranks for place in places]
    folder = f"{own['run']['name']}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    keys = [f"outer.exchange={_bucket(places[0], own, wanted.exchange)}/{folder}", f"outer.clusters={len(places)}"]
    keys += [f"outer.names={','.join(place.name for place in places)}"]
    if len(set(ranks)) > 1 and not own["outer"]["shares"]:
        keys += [f"outer.shares={','.join(map(str, ranks))}"]
        listed = ", ".join(f"{place.name} {plural(place.ranks, 'rank')}" for place in places)
        say(f"each cluster's share of the global batch is by its ranks: {listed} (outer.shares changes that)")
    return [
        wanted.submission_of(place.backend, "", [*wanted.overrides, *keys, f"outer.cluster={number}"])
        for number, place in enumerate(places, 1)
    ]


def _bucket(first: Place, job: dict[str, Any], exchange: str) -> str:
    """The folder in a bucket for what the clusters exchange, with a folder for each run. Exit 2 if there is none."""
    url = exchange or job["outer"]["exchange"]
    if not url and first.backend.mirror not in NO_MIRROR:
        url = f"{first.backend.mirror.rstrip('/').removesuffix('/runs')}/exchange"
    if not url:
        why = f"{first.name} has no bucket, and the clusters meet in one"
        raise Exit(f"{why}: --exchange URL names one that all of them read and write (s3://, abfs://, file://)", code=2)
    return str(url).rstrip("/")


def _resumed(places: Sequence[Place], wanted: Wanted) -> list[Submission]:
    """The submissions that go on with a job: the first cluster's has this id, the others' meet in the same folder."""
    first = wanted.submission_of(places[0].backend, wanted.resume, wanted.overrides)
    url = _exchange_of(first.text)
    if not url:
        why = f"{first.begun.id if first.begun else wanted.resume} was begun by one cluster alone"
        raise Exit(f"{why}: it goes on without --with", code=2)
    found = [first]
    for place in places[1:]:
        job = place.wanted or _with_exchange(place, url)
        found.append(wanted.submission_of(place.backend, job, wanted.overrides))
    return found


def _exchange_of(text: str) -> str:
    try:
        return str(tomllib.loads(text).get("outer", {}).get("exchange", ""))
    except tomllib.TOMLDecodeError:
        return ""


def _with_exchange(place: Place, url: str) -> str:
    """The id of a cluster's job that meets the others in this folder."""
    for job in reversed(place.backend.jobs()):
        if _exchange_of(place.backend.begun(job.id).text) == url:
            return job.id
    raise Exit(f"{place.name}: none of its jobs meets the others in {url} (--with {place.name}:ID names one)", code=2)


def _start(places: Sequence[Place], submissions: Sequence[Submission], started: list[Followed]) -> None:
    """Prepare all, check that they see one bucket, and submit; if one cannot start, none is left running."""
    try:
        for place, submission in zip(places, submissions, strict=True):
            place.backend.prepare(submission)
        _check_bucket(places, _exchange_of(submissions[0].text))
        for place, submission in zip(places, submissions, strict=True):
            with interrupted_later():
                submitted = place.backend.submit(submission)
                started.append(Followed(place.name, place.backend, submitted, place.flag))
            ranks = sum(node.ranks for node in place.backend.nodes()[: submission.nodes])
            say(f"{place.name}: {submitted.id}: {plural(ranks, 'rank')} on {plural(submission.nodes, 'node')}")
    except (Exit, CannotStart) as error:
        for one in started:
            one.backend.stop(one.job.id, now=True)
            say(f"{one.label}: {one.job.id} is stopped, as the job cannot start everywhere")
        why = error.message if isinstance(error, Exit) else str(error)
        code = error.code if isinstance(error, Exit) else 1
        raise Exit(f"{place.name}: {why}", code=code) from None


def _check_bucket(places: Sequence[Place], url: str) -> None:
    """Exit 2 unless each cluster can write into the folder, and sees there what those before it have written."""
    before: list[str] = []
    for place in places:
        try:
            seen = place.backend.run_program("store", "mark", f"{url}/clusters", place.name).split()
        except Exit as error:
            raise Exit(
                f"{error.message} (--exchange URL names a bucket that all clusters read and write)", code=2
            ) from None
        missing = [name for name in before if name not in seen]
        if missing:
            why = f"what {missing[0]} has written to {url} is not there"
            raise Exit(f"{why}; {_ANOTHER}", code=2)
        before.append(place.name)


def _end(started: Sequence[Followed], ended: Sequence[JobRecord | Exit]) -> None:
    """Say how each cluster's part has ended; exit with the worst code."""
    worst = 0
    for one, how in zip(started, ended, strict=True):
        if isinstance(how, Exit):
            say(f"{one.label}: {one.job.id}: {how.message}")
            worst = worst or how.code
        elif how.state != JobState.SUCCEEDED:
            say(f"{one.label}: {how.id} {how.state}: {how.reason}")
            worst = worst or how.exit_code or 1
    first, others = started[0], started[1:]
    names = " ".join(f"{one.label}:{one.job.id}" for one in others)
    if worst:
        again = " ".join(f"--with {one.label}" for one in others)
        raise Exit(next_command(f"fab train --resume {first.job.id} {again}{first.flag}"), code=worst)
    model = f"the model: fab fetch {first.job.id}{first.flag}"
    say(next_command(f"fab report {first.job.id} {names}{first.flag}   ({model})"))
