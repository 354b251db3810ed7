"""`fab train JOB train.lr=1e-3,6e-4 --each`: a job for each value, or each combination of values of several keys.

All are submitted at once and wait for their nodes. They run side by side, each on `--nodes` nodes, as far as there is
room, and the others follow as nodes become free.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from invoke.exceptions import Exit

from fabfile import backends
from fabfile.backends.base import Backend, CannotStart, JobRecord, JobState
from fabfile.backends.submission import Submission
from fabfile.following import Followed, ctrl_c_says_what_runs_of, follow
from fabfile.output import hint, interrupted_later, next_command, plural, say, table
from node.run_data import number

MOST = 64  # most jobs of one sweep
AT_ONCE = 6  # most jobs that are followed at the same time, each on a connection of its own


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    overrides: Sequence[str]
    submission_of: Callable[[Backend, str, Sequence[str]], Submission]
    every: int | None
    detach: bool
    dry_run: bool


@dataclass(frozen=True)
class Variant:
    """One job of the sweep: all of its overrides, and those that set it apart."""

    overrides: tuple[str, ...]
    own: tuple[str, ...]


def train(stack: str, inventory: str, wanted: Wanted) -> None:
    """Submit the jobs, follow them, compare them, and exit with the worst code."""
    variants = variants_of(wanted.overrides)
    started: list[Followed] = []
    with ctrl_c_says_what_runs_of(started), contextlib.ExitStack() as opened:
        backend = opened.enter_context(backends.connect(stack, inventory))
        submissions = [wanted.submission_of(backend, "", each.overrides) for each in variants]
        submissions = [replace(each, queue=True) for each in submissions]
        say(_size(backend, submissions))
        plans = [backend.plan(each) for each in submissions]
        if wanted.dry_run:
            for variant, plan in zip(variants, plans, strict=True):
                say(f"# {' '.join(variant.own)}\n{plan}")
            return
        _submit(backend, variants, submissions, started)
        if wanted.detach:
            say(next_command(f"fab jobs   (compare: {_report([one.job.id for one in started])})"))
            return
        ended: list[JobRecord | Exit] = []
        for first in range(0, len(started), AT_ONCE):
            some = started[first : first + AT_ONCE]
            apart = [replace(one, backend=opened.enter_context(backends.connect(stack, inventory))) for one in some]
            ended += follow(apart, wanted.every)
        code = _compare(backend, variants, started, ended)
    if code:
        raise Exit(code=code)


def variants_of(overrides: Sequence[str]) -> list[Variant]:
    """Every combination of the values of keys with several, `train.lr=1e-3,6e-4`; a value in quotes or brackets is one,
    whatever commas it has. Exit 2 if no key has several, and for an empty or repeated value, or too many jobs."""
    choices: list[list[str]] = []
    for override in overrides:
        key, _, given = override.partition("=")
        values = [given] if given[:1] in ('"', "'", "[") else given.split(",")
        if len(values) > 1 and not all(values):
            raise Exit(f"{override}: a value is empty; allowed: values with a comma between them", code=2)
        if len(set(values)) < len(values):
            raise Exit(f"{override}: a value is there twice; allowed: each once", code=2)
        choices.append([f"{key}={value}" for value in values])
    swept = {index for index, each in enumerate(choices) if len(each) > 1}
    if not swept:
        raise Exit("--each: no key has several values; allowed: such as train.lr=1e-3,6e-4", code=2)
    found = list(itertools.product(*choices))
    if len(found) > MOST:
        raise Exit(f"--each: {len(found)} jobs; allowed: at most {MOST}", code=2)
    return [Variant(each, tuple(each[index] for index in sorted(swept))) for each in found]


def _size(backend: Backend, submissions: Sequence[Submission]) -> str:
    """How many jobs on how many nodes, and what they may cost."""
    first = submissions[0]
    hourly = sum(node.usd_per_hour for node in backend.nodes()[: first.nodes])
    line = f"{len(submissions)} jobs, each on {plural(first.nodes, 'node')} of {backend.name}"
    if not hourly:
        return line
    line += f": ${hourly:.2f} an hour while one runs"
    if not first.time_limit:
        return f"{line}; in all as many hours as they take (--time-limit bounds each)"
    return f"{line}, at most ${hourly * first.time_limit / 3600 * len(submissions):.2f} in all"


def _submit(
    backend: Backend, variants: Sequence[Variant], submissions: Sequence[Submission], started: list[Followed]
) -> None:
    """Prepare and submit all; if one cannot be, those before it stay, and the error says so."""
    for variant, submission in zip(variants, submissions, strict=True):
        try:
            backend.prepare(submission)
            with interrupted_later():
                submitted = backend.submit(submission)
                started.append(Followed(submitted.id, backend, submitted, hint("fab logs").removeprefix("fab logs")))
            say(f"{submitted.id}: {' '.join(variant.own)}")
        except (Exit, CannotStart) as error:
            why = error.message if isinstance(error, Exit) else str(error)
            there = ", ".join(one.job.id for one in started)
            kept = f"; submitted before it, and going on: {there}" if there else ""
            code = error.code if isinstance(error, Exit) else 1
            raise Exit(f"{' '.join(variant.own)}: {why}{kept}", code=code) from None


def _compare(
    backend: Backend, variants: Sequence[Variant], started: Sequence[Followed], ended: Sequence[JobRecord | Exit]
) -> int:
    """Print a table of the jobs, the one with the lowest validation loss marked; returns the worst exit code."""
    ids = [one.job.id for one in started]
    losses = [_last_losses(data) for data in backend.run_data(ids)]
    known = [val for _, val in losses if val is not None]
    rows = [["JOB", *(own.partition("=")[0] for own in variants[0].own), "STATE", "LOSS", "VAL LOSS", "COST"]]
    worst = 0
    for job, variant, how, (loss, val) in zip(ids, variants, ended, losses, strict=True):
        record = how if isinstance(how, JobRecord) else None
        best = " *" if val is not None and val == min(known) else ""
        figures = [f"{each:.4f}" if each is not None else "-" for each in (loss, val)]
        values = [own.partition("=")[2] for own in variant.own]
        rows.append(
            [job, *values, record.state if record else "not known", figures[0], figures[1] + best, _cost(record)]
        )
        if record is None or record.state != JobState.SUCCEEDED:
            worst = worst or (record.exit_code if record else None) or 1
    say(table(rows))
    ranked = sorted(zip(ids, losses, strict=True), key=lambda one: one[1][1] if one[1][1] is not None else float("inf"))
    say(next_command(_report([job for job, _ in ranked])))
    return worst


def _report(ids: Sequence[str]) -> str:
    return f"fab report {' '.join(ids)}"


def _last_losses(data: dict[str, Any]) -> tuple[float | None, float | None]:
    """A run's last loss, and its last validation's."""
    metrics = data.get("metrics") or {}
    points, validations = metrics.get("points") or [{}], metrics.get("validations") or [{}]
    return number(points[-1].get("loss")), number(validations[-1].get("val_loss"))


def _cost(job: JobRecord | None) -> str:
    if job is None or not job.started or not job.ended:
        return "-"
    return f"${max(0.0, job.ended - job.started - job.paused) / 3600 * job.price_per_hour:.2f}"
