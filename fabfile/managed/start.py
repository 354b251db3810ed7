"""The part of `fab train --managed` between its options and the manager's loop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.base import NO_MIRROR, Backend, JobRecord, JobState, find
from fabfile.backends.submission import Submission
from fabfile.managed import record as records
from fabfile.managed.bounds import Bounds
from fabfile.managed.follower import Follower
from fabfile.managed.manager import Manager
from fabfile.managed.places import KEYS
from fabfile.managed.record import Record
from fabfile.managed.session import Session
from fabfile.output import hint, plural, say
from fabfile.question import ask, must_be_answerable
from fabfile.stacks import pulumi_cli
from fabfile.targets import load_any
from fabfile.verbs.up import checked
from infra.inventory import SshCluster

_TAIL = 10
"""Lines of the log that are shown of a job that runs already."""
Resubmit = Callable[[Backend, str, int], Submission]


@dataclass(frozen=True, kw_only=True)
class Options:
    """`fab train`'s options that --managed reads, as they were given; None and empty: not given."""

    stack: str
    inventory: str
    detach: bool
    every: int | None
    max_usd: float | None
    max_hours: float | None
    tries: int | None
    zones: str
    types: str
    yes: bool
    elastic: bool = False

    def check(self, managed: bool) -> None:
        """Exit 2 for what cannot be. Without --managed none of its own options is allowed."""
        own = ("max_usd", "max_hours", "tries", "zones", "types", "yes")
        given = [name for name in own if getattr(self, name) not in (None, "", False)]
        if not managed and given:
            raise Exit(f"--{given[0].replace('_', '-')}: goes with --managed", code=2)
        if not managed:
            return
        if self.inventory:
            raise Exit("--managed: only a stack's nodes can be replaced: --stack NAME in place of --inventory", code=2)
        if self.detach:
            why = "with --managed this process is the manager (nohup fab ... & needs no terminal either)"
            raise Exit(f"--detach: {why}", code=2)
        for name in ("max_usd", "max_hours"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise Exit(f"--{name.replace('_', '-')} {value:g}: must be more than 0", code=2)
        self.places()

    def places(self) -> dict[str, tuple[str, ...]]:
        """The zones and types that the cluster may move to. Exit 2 for a list that is none."""
        return {name: _list(f"--{name}", getattr(self, name)) for name in KEYS}

    @property
    def bounds(self) -> Bounds:
        """Where the manager stops the job."""
        return self.bounds_after(Bounds())

    def bounds_after(self, before: Bounds) -> Bounds:
        """The same for a job that was managed before: what is not given stays as it was."""
        given = (self.max_usd, self.max_hours, self.tries)
        were = (before.max_usd, before.max_hours, before.tries)
        usd, hours, tries = (old if new is None else new for new, old in zip(given, were, strict=True))
        return Bounds(usd, hours, int(tries))


def _list(flag: str, text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",")) if text else ()
    if not all(words) or len(set(words)) < len(words):
        raise Exit(f"{flag} {text!r}: names, each once, with commas between them", code=2)
    return words


def agree(chosen: Options, backend: Backend, mirror: str, nodes: int, *, is_known: bool = False) -> Mapping[str, Any]:
    """Check the options against the stack, say the price and what will be done without a question, and ask once.
    `mirror`: the job's; `is_known`: it may have been managed before. Returns the stack's facts. Exit 2 for what cannot
    be, 1 after a no."""
    must_be_answerable(chosen.yes)
    facts = checked(chosen.stack)
    if not _usd(backend, nodes) and chosen.max_usd is not None:
        raise Exit(f"--max-usd: {chosen.stack} has no price, so that no sum is ever reached: leave it out", code=2)
    hours = facts["max_hours"]
    if hours and chosen.max_hours is not None and chosen.max_hours > hours:
        why = f"the nodes of {chosen.stack} end {hours} h after their first boot (maxHours), and the job with them"
        raise Exit(f"--max-hours {chosen.max_hours:g}: {why}", code=2)
    places = {name: values for name, values in chosen.places().items() if values}
    _check_places(chosen.stack, facts, mirror, places)
    others = "; without room there, in " if places else ""
    others += ", ".join(f"{KEYS[name]} {value}" for name, values in places.items() for value in values)
    bounds = "bounds that are not given again stay as they were" if is_known else chosen.bounds.shown()
    say(f"managed: nodes of {chosen.stack} that are lost are made again{others}; {bounds}")
    if hours:
        say(f"managed: each node ends {hours} h after its first boot (maxHours), the job with it: that is not undone")
    if not chosen.yes:
        ask("replace nodes without asking again?")
    return facts


def _check_places(stack: str, facts: Mapping[str, Any], mirror: str, places: Mapping[str, Sequence[str]]) -> None:
    """Exit 2 unless the manager itself can have the stack's nodes made in all of these zones and types."""
    for name, values in places.items():
        if not facts["cloud"]:
            raise Exit(f"--{name}: stack {stack} is no cloud's: it has no {KEYS[name]}", code=2)
        cluster = load_any(stack, "")
        if not isinstance(cluster, SshCluster) or cluster.queue is not None:
            who = "Slurm's queue" if isinstance(cluster, SshCluster) else "their node group"
            why = f"the machines of {stack}'s jobs are replaced by {who}, where the stack has them"
            raise Exit(f"--{name}: {why}: leave it out", code=2)
        if mirror in NO_MIRROR:
            why = "all nodes are then made again, and the job goes on from the bucket: it has none"
            raise Exit(f"--{name}: {why}", code=2)
        for value in values:
            pulumi_cli.ask(pulumi_cli.module("config.configure", stack, "--check", "--", KEYS[name], value))


def _usd(backend: Backend, nodes: int) -> float:
    return sum(node.usd_per_hour for node in backend.nodes()[:nodes])


def known(chosen: Options, backend: Backend, wanted: str) -> JobRecord | None:
    """The job to manage without submitting it: one that is under way, or that was managed from here before and has not
    been done. None: `fab train` has to start or resume it as always."""
    job = find(backend.jobs(), wanted) if wanted else None
    if job is None or job.state == JobState.SUCCEEDED:
        return None
    if job.state.is_final and not records.load(chosen.stack, job.id):
        return None
    names = [node.name for node in backend.nodes()]
    others = names[backend.begun(job.id).nodes or len(names) :]
    # Slurm and Kubernetes choose the nodes, and the latter's machines have other names than its JobNodes.
    if job.files_on or (not job.state.is_final and not job.slurm and {*job.nodes} & {*others}):
        where = f"{job.id} is on {', '.join(job.nodes)}"
        raise Exit(f"--managed: for jobs on the first nodes of a cluster, as the head is one; {where}", code=2)
    if chosen.elastic and not job.state.is_final and not backend.begun(job.id).elastic:
        raise Exit(f"--elastic: {job.id} runs and was begun without it: leave it out, or stop it first", code=2)
    return job


def check_elastic(stack: str) -> None:
    """Exit 2 for a cluster on which no elastic job is managed: on Kubernetes that was never tried."""
    if not isinstance(load_any(stack, ""), SshCluster):
        raise Exit("--elastic: with --managed only over SSH; on Kubernetes one of the two", code=2)


def record_of(chosen: Options, backend: Backend, job: str, nodes: int, text: str) -> Record:
    """The job's record from before, or a new one; with the bounds that these options give. `nodes`: the job's full
    size; `text`: the job file that the command line names, resolved, or empty. The time between a job's end and its
    resumption counts neither as time nor as cost. Exit 2 for places to which it cannot go."""
    there, now = find(backend.jobs(), job), time.time()
    found = records.load(chosen.stack, job)
    if found is not None:
        if there is not None and there.state.is_final:
            found.pause(there.ended or now, now)
    else:
        began = _began(there, now) if there else now
        attempt = max(1, there.attempt) if there else 1
        found = Record(
            job,
            chosen.stack,
            nodes,
            began,
            prices=[(began, _usd(backend, nodes))],
            first_attempt=attempt,
            counted_until=now,
        )
    places = chosen.places()
    found.bounds = chosen.bounds_after(found.bounds)
    found.zones, found.types = list(places["zones"]), list(places["types"])
    found.text = text or found.text
    for name, values in places.items():
        if values and not found.text:
            why = f"the data of {job} go along, and no job file of this machine says what they are made from"
            raise Exit(f"--{name}: {why}: name it: fab train JOB --resume {job} --managed --{name} ...", code=2)
    return found


def _began(job: JobRecord, now: float) -> float:
    """The job's start, later by its pauses; Unix time in seconds. It is the head's word: a start after `now`, or one
    that is no number, would lift the bounds. Exit 1 for times that cannot be."""
    try:
        began = job.created
        if job.started is not None:
            last = job.created - job.ended_before if job.ended_before else 0.0
            began = job.started + job.paused + max(0.0, last)
        if began >= 0:  # NaN is not
            return min(began, now)
    except TypeError:
        pass
    raise Exit(f"{job.id}: its record on the head has times that cannot be", code=1)


def manage(
    chosen: Options, facts: Mapping[str, Any], record: Record, resubmit: Resubmit, cursor: int | None, *, resume: bool
) -> JobRecord:
    """Manage a job to its end; returns its record. `cursor`: where its log is shown from; None: its last lines.
    `resume`: start it again, once its nodes are well, if it is over. `chosen.elastic`: as the job is. Ctrl-C and
    SIGTERM leave the job running. Exit 1 if a bound was reached, or if somebody else manages the job."""
    with records.held(record.stack, record.job), _interruptible():
        record.resume = record.resume or resume
        record.save()
        session, job = Session(record, facts, chosen.elastic), None
        try:
            session.tell_head()
            session.decide(f"{record.job} is managed: {record.bounds.shown()}")
            tail = _TAIL if cursor is None else -1
            shown = Follower(session.connect, record.job, cursor or 0, tail, chosen.every)
            job = Manager(session, resubmit).run()
            shown.wait()
            return _ended(session, job)
        finally:
            session.close()
            if job is not None and job.state == JobState.SUCCEEDED:
                records.forget(record.stack, record.job)


def _ended(session: Session, job: JobRecord) -> JobRecord:
    record, now = session.record, time.time()
    usd = f", ${record.usd(now):.2f}" if record.prices[-1][1] else ""
    session.decide(f"{job.id} {job.state} after {plural(record.replaced, 'replacement')}{usd}")
    if session.reached:
        again = f"next: fab train --resume {job.id} --managed   (with more of it)"
        raise Exit(hint(f"{job.id} was stopped: {session.reached}\n{again}"), code=1)
    return job


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the manager as Ctrl-C does."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def how_to_go_on(job: str) -> str:
    """What an interrupted manager says."""
    return hint(f"{job} goes on without a manager\nnext: fab train --resume {job} --managed   (stop: fab stop {job})")
