"""What all parts of a manager share: the job's record, the connections to its head and nodes, and its decisions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from invoke.exceptions import Exit

from fabfile import backends
from fabfile.backends.base import NO_MIRROR, Backend, JobRecord, Unreachable
from fabfile.job_file import setting
from fabfile.launchers import SLURM
from fabfile.managed.follower import OWN
from fabfile.managed.head import LEASE, Head
from fabfile.managed.look import Look
from fabfile.managed.places import Places
from fabfile.managed.record import Record, me
from fabfile.managed.watch import Seen, Watch
from fabfile.output import say
from fabfile.targets import load_any
from infra.inventory import SshCluster


@dataclass
class Pause:
    """Between two tries of one thing: twice as long after each, until it is done."""

    first: float = 20.0
    longest: float = 600.0
    seconds: float = 0.0
    until: float = 0.0

    def begin(self, seconds: float = 0.0) -> None:
        """No further try for a while, or for so many seconds."""
        self.seconds = seconds or min(self.longest, max(self.first, 2 * self.seconds))
        self.until = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether the next try may come; before the first `begin` it may."""
        return time.monotonic() >= self.until

    def done(self) -> None:
        """It has worked: the next try may come at once."""
        self.seconds = self.until = 0.0


@dataclass
class Session:
    """A manager's connections and what it knows. To be closed."""

    record: Record
    facts: Mapping[str, Any]
    """Of the stack, as in infra.config.summary."""
    elastic: bool = False
    """Whether the job goes on by itself when it loses nodes, and takes the machines in that are made in their place."""
    head: Head = field(init=False)
    look: Look = field(init=False)
    watch: Watch = field(default_factory=Watch)
    places: Places = field(init=False)
    replacing: Pause = field(default_factory=Pause)
    text: str = ""
    """The job's job.toml, as its head has it; empty until that has answered. It names nothing on this machine: for
    that there is `Record.text`."""
    reached: str = ""
    """The bound at which the job was stopped; empty: none."""

    def __post_init__(self) -> None:
        self.head = Head(self.connect, self.record)
        self.look = Look(load_any(self.record.stack, ""))
        self.places = Places.of(self.record.zones, self.record.types)

    def connect(self) -> Backend:
        """A connection to the cluster as it is now. To be closed."""
        return backends.connect(self.record.stack, "")

    def nodes(self) -> list[Seen]:
        """What is seen of the nodes that the job may have. A scheduler chooses among all; over SSH it is the first."""
        cluster, found = self.look.cluster, self.look.nodes()
        chooses = not isinstance(cluster, SshCluster) or cluster.launcher == SLURM
        return found if chooses else found[: self.record.nodes]

    def connect_anew(self) -> None:
        """After nodes were replaced: others have their names and addresses now."""
        try:
            self.head.renew()
            cluster = load_any(self.record.stack, "")
        except Exit as error:  # an `up` that failed half-way; it is tried again
            self.decide(f"the stack's nodes are not known now: {' '.join(str(error.message).split())}")
            self.replacing.begin()
            return
        self.look.close()
        self.look, self.watch = Look(cluster), Watch()
        self.tell_head()

    def close(self) -> None:
        """Give up the lease, so that another machine may manage the job at once, and close the connections."""
        if self.record.manager == me():
            self.tell_head(0.0)
        self.head.close()
        self.look.close()

    def decide(self, text: str) -> None:
        """Record and print a decision."""
        self.record.decide(text)
        say(f"{OWN}{text}")

    def tell_head(self, seconds: float = LEASE) -> None:
        """Hand the decisions over and renew the lease; a head that does not answer gets them later. Exit 1 if somebody
        else manages the job."""
        try:
            self.head.order(seconds=seconds)
        except Unreachable:
            return

    def bound(self) -> str:
        """The bound of money or time that is reached; empty: none."""
        now = time.time()
        return self.record.bounds.reached(self.record.usd(now), self.record.hours(now))

    def stop(self, why: str) -> None:
        """Stop the job with a checkpoint, because of a bound; once."""
        if not self.reached:
            self.reached = why
            self.decide(f"{self.record.job} is stopped with a checkpoint: {why}")
            self.head.order()
            self.head.stop()

    def no_try_left(self, attempt: int) -> str:
        """Why a job in this attempt may have no further replacement or restart; empty: it may."""
        tries, most = self.record.tries(attempt), self.record.bounds.tries
        return f"{tries} replacements and restarts (--tries {most})" if tries >= most else ""

    def may_try(self, job: JobRecord) -> bool:
        """Whether one more replacement or restart is allowed; if not, stop the job."""
        if why := self.no_try_left(job.attempt):
            self.stop(why)
        return not why

    def hourly_usd(self) -> float:
        """What the job's nodes cost an hour."""
        return sum(node.usd_per_hour for node in self.head.backend.nodes()[: self.record.nodes])

    @property
    def head_name(self) -> str:
        """The node that has the job's record; empty on Kubernetes, where a shared volume has it."""
        cluster = self.look.cluster
        return cluster.head.name if isinstance(cluster, SshCluster) else ""

    @property
    def has_queue(self) -> bool:
        """Whether Slurm starts the machines for jobs, which then are none of the cluster's own nodes."""
        cluster = self.look.cluster
        return isinstance(cluster, SshCluster) and cluster.queue is not None

    @property
    def is_mirrored(self) -> bool:
        """Whether a bucket has the job's checkpoints."""
        return bool(self.text) and setting(self.text, "checkpoint", "mirror") not in NO_MIRROR

    @property
    def survives_its_head(self) -> bool:
        """Whether the job's files are on more than the head's own disk."""
        return bool(self.look.cluster.shared_dir) or self.is_mirrored
