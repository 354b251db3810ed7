"""The loop that holds a job to its end: look at its nodes, replace what is lost, move the job back to full size.

The job itself never waits for it: the supervisor restarts it on the nodes that are left, and moves it when it is asked.
An elastic job is not moved: its ranks that are left go on, and those on new machines join them (node/job/elastic.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from invoke.exceptions import Exit

from fabfile.backends.base import Backend, CannotStart, JobRecord, JobState, Unreachable
from fabfile.backends.ssh.head import lost_connections
from fabfile.backends.submission import Submission
from fabfile.managed.replacement import NotReplaced, equip
from fabfile.managed.replacing import replace
from fabfile.managed.session import Pause, Session
from fabfile.managed.watch import Seen
from node.job import endings

POLL = 4.0
RENEW = 30.0
"""Seconds between two words to the head without need, well below the lease."""
QUEUE = 600.0
"""Seconds between two tries to get more machines of a queue, which Slurm starts if its cloud has room."""
GIVE_UP = 600.0
"""Seconds without an answer after which a job is left that ought to be stopped, at a bound."""
HEADLESS = 120.0
"""Seconds without an answer of the head after which it may be replaced, if it is not known to have ended."""
STEADY = 600.0
"""Seconds that a resumed job has to run until one that ends anew is resumed as soon as the first time."""
TO_JOIN = 45.0
"""Seconds that a node of an elastic job which is there has to join it, before the manager looks after that."""


@dataclass
class Manager:
    """One managed job. `submission`: makes the submission that resumes it on so many nodes."""

    session: Session
    submission: Callable[[Backend, str, int], Submission]
    _moving: Pause = field(default_factory=Pause)
    _resuming: Pause = field(default_factory=Pause)
    _attempt: int = 1
    _renewed: float = 0.0
    _answered: float = field(default_factory=time.monotonic)
    _said: set[str] = field(default_factory=set)
    _lost: set[str] = field(default_factory=set)
    """The nodes that were lost since the job was last on all of its nodes."""
    _away_since: float = 0.0
    """When the elastic job was first seen without some of its nodes; 0: it has all."""

    def run(self) -> JobRecord:
        """Manage the job until it is over; returns its record then. Exit 1 if it cannot go on."""
        session = self.session
        while True:
            try:
                job = session.head.job()
                if job is None:
                    self._from_bucket()
                else:
                    self._attempt = job.attempt
                    session.text = session.text or session.head.text()
                    if not job.state.is_final:
                        self._tend(job)
                    elif self._ended_for_good(job):
                        return job
                self._answered = time.monotonic()
                self._said.discard("silent")
            except Unreachable as error:
                self._headless(str(error))
            time.sleep(POLL)

    def _tend(self, job: JobRecord) -> None:
        """One look at a job that is under way. Raises Unreachable if its head does not answer."""
        session, record = self.session, self.session.record
        record.counted_until = time.time()
        if why := session.bound():
            session.stop(why)
            return
        if job.state == JobState.RUNNING and time.monotonic() > self._resuming.until + STEADY:
            self._resuming.done()
        seen = session.nodes()
        present = [name for name in job.nodes if name not in job.away]
        lost = self._replaceable(session.watch.lost(seen, present, time.monotonic()))
        self._lost |= {*lost}
        self._away_since = (self._away_since or time.monotonic()) if job.away else 0.0
        if lost and session.replacing.is_over:
            if session.may_try(job) and replace(session, job, lost, seen):
                self._from_bucket()
        elif len(present) >= record.nodes and not lost:
            self._full_again(job)
        elif job.state == JobState.RUNNING and job.reason:
            self._say_once("waits", f"{job.id} goes on with {len(job.nodes)} of {record.nodes} nodes: {job.reason}")
        elif job.state == JobState.RUNNING and self._are_there(seen) and self._moving.is_over:
            if job.away:
                self._let_join(job)
            else:
                self._move_back(job, [node.name for node in seen if node.name not in job.nodes])
        if record.sent < len(record.decisions) or time.monotonic() - self._renewed > RENEW:
            record.save()
            session.head.order()
            self._renewed = time.monotonic()

    def _full_again(self, job: JobRecord) -> None:
        """The job has all of its nodes, perhaps after some were lost."""
        if self._lost and self.session.elastic:
            self.session.decide(f"{job.id} trains on all {self.session.record.nodes} nodes again")
        self._moving.done()
        self._lost.clear()
        self._said.discard("waits")

    def _are_there(self, seen: Collection[Seen]) -> bool:
        """Whether all nodes for the job are there and well, and it was not asked already to go on on them."""
        session = self.session
        enough = session.has_queue or len(seen) >= session.record.nodes
        others = [node for node in seen if node.state != "cordoned"]  # its pods have found other machines
        return enough and _all_well(others) and not session.head.resizing

    def _replaceable(self, lost: Mapping[str, str]) -> dict[str, str]:
        """Without a head that answers and that alone has the job's files, and without machines that a cloud's
        Kubernetes replaces by itself."""
        session = self.session
        if not session.head_name and session.facts["cloud"]:
            for name, why in lost.items():
                self._say_once(name, f"{name}: {why}; to replace it is its node group's")
            return {}
        head = session.head_name
        if head in lost and not session.survives_its_head:
            self._say_once("head", f"{head}: {lost[head]}; not replaced, as it alone has the job's files")
            return {name: why for name, why in lost.items() if name != head}
        return dict(lost)

    def _move_back(self, job: JobRecord, missing: Collection[str]) -> None:
        """Ask the job to go on, from a checkpoint, on all of its nodes. Whatever brought the `missing` ones back, by
        whom and however far: they get what the job needs first. Whether Slurm can start more machines for a queue
        nobody can see: that is tried seldom, as each try costs a restart."""
        session, record = self.session, self.session.record
        self._moving.begin(QUEUE if session.has_queue else 0.0)
        if not self._equipped(missing, missing):
            return
        record.resized += 1
        session.decide(f"{job.id} goes on on all {record.nodes} nodes again, from a checkpoint")
        session.head.order(without=())

    def _let_join(self, job: JobRecord) -> None:
        """Nodes are there again, by whomever, and the elastic job takes them in by itself, without another attempt: if
        that lasts, its head may not know them yet, as after an `up` by hand, or by a manager that was killed."""
        if time.monotonic() - self._away_since < TO_JOIN:
            return
        self._moving.begin()
        if not self._equipped(job.away, ()):  # code and data its head brings
            return
        away = ", ".join(job.away)
        self._say_once(f"{away} {job.attempt}", f"{away}: there, but not in {job.id}; all nodes know each other again")

    def _equipped(self, names: Collection[str], to_bring: Collection[str]) -> bool:
        """Wait until the job can have these nodes, and bring those `to_bring` its code and data; False, with the reason
        as a decision, if that cannot be done now."""
        session = self.session
        try:
            equip(session.record.stack, session.facts, to_bring, session.text, session.head.code)
        except NotReplaced as error:
            session.decide(f"{', '.join(names)} cannot be used yet, tried again: {error}")
            return False
        return True

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self.session.decide(text)

    # A job that has ended, and a head that does not answer

    def _ended_for_good(self, job: JobRecord) -> bool:
        """Whether nothing more is to be done; otherwise the job is resumed, when its nodes are well."""
        session = self.session
        if job.state == JobState.SUCCEEDED or session.reached:
            return True
        seen = session.nodes()
        lost = dict(session.watch.lost(seen, (), time.monotonic()))
        session.record.resume |= job.ended_by not in (endings.PROGRAM, endings.SOMEBODY)
        if not session.record.resume:
            if job.ended_by == endings.PROGRAM:
                session.decide(f"{job.id} is not resumed, as it would end so again: {job.reason}")
            return True
        if why := session.bound():
            session.reached = why
            return True
        if cordoned := ", ".join(node.name for node in seen if node.state == "cordoned"):
            self._say_once("cordoned", f"{job.id} is resumed when {cordoned} takes pods again: kubectl uncordon")
        replaces = bool(lost) and session.replacing.is_over
        resumes = not lost and _all_well(seen) and self._resuming.is_over
        if replaces or resumes:
            session.reached = session.no_try_left(job.attempt)
            if session.reached:
                return True
            if replaces:
                self._replace_without_job(lost, seen)
            else:
                self._resume()
        return False

    def _replace_without_job(self, lost: Mapping[str, str], seen: Collection[Seen], *, is_silent: bool = False) -> None:
        """Replace nodes while no job runs, or its head `is_silent`."""
        session = self.session
        head = session.head_name
        if head in lost and not session.survives_its_head:
            why = f"{head}, the head, is lost, and with it {session.record.job}'s checkpoints: {lost[head]}"
            raise Exit(f"{why}; no bucket and no shared folder has them\nnext: fab up", code=1)
        if replace(session, None, lost, seen, is_silent=is_silent) or (
            head in lost and not session.look.cluster.shared_dir
        ):
            self._from_bucket()

    def _resume(self) -> None:
        """Start the job again from its newest checkpoint, on the head or in its bucket."""
        session, record = self.session, self.session.record
        self._resuming.begin()
        backend = session.head.backend
        try:
            with lost_connections():
                submission = self.submission(backend, record.job, record.nodes)
                backend.prepare(submission)
                started = backend.submit(submission)
        except (CannotStart, Unreachable, Exit) as error:
            why = " ".join(str(getattr(error, "message", None) or error).split())
            session.decide(f"{record.job} cannot be resumed, tried again: {why}")
            if isinstance(error, Exit):  # a node whose boot took longer than was waited for has neither code nor data
                others = [node.name for node in session.nodes() if node.name != session.head_name]
                self._equipped(others, others)
            return
        record.resume = False
        session.decide(f"{started.id} resumed from its last checkpoint")
        session.tell_head()

    def _headless(self, why: str) -> None:
        """The head does not answer: look whether it is lost, or another node. Nothing is replaced in a hurry."""
        session = self.session
        self._say_once("silent", f"{session.head_name or 'the cluster'} does not answer: {why}")
        silent = time.monotonic() - self._answered
        if silent > GIVE_UP and (bound := session.bound()):
            what = f"{bound}; it cannot be stopped, as nothing has answered for {silent:.0f} s"
            raise Exit(f"{session.record.job}: {what}\nnext: fab stop {session.record.job}", code=1)
        try:
            seen = session.nodes()
        except Unreachable:
            return
        lost = dict(session.watch.lost(seen, (), time.monotonic()))
        head = session.head_name
        is_gone = any(node.name == head and node.state == "gone" for node in seen)
        if head in lost and not is_gone and (silent < HEADLESS or not session.survives_its_head):
            lost.pop(head)  # it may answer again
        if lost and session.replacing.is_over:
            if bound := session.no_try_left(self._attempt):
                raise Exit(f"{', '.join(lost)}: {next(iter(lost.values()))}; not replaced: {bound}", code=1)
            self._replace_without_job(lost, seen, is_silent=True)

    def _from_bucket(self) -> None:
        """The head is a new one, which knows nothing of the job: go on with what the bucket has. Exit 1 without one."""
        session, record = self.session, self.session.record
        if not session.is_mirrored:
            raise Exit(f"{session.head_name} has no job {record.job}, and no bucket has its checkpoints", code=1)
        if self._resuming.is_over:
            record.earlier += max(0, self._attempt - record.first_attempt - record.resized)
            record.first_attempt, record.resized, record.sent, self._attempt = 1, 0, 0, 1
            self._resume()


def _all_well(seen: Collection[Seen]) -> bool:
    return all(node.is_well for node in seen)
