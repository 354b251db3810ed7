"""The interface between the verbs and what runs jobs: our supervisor over SSH, Slurm, or Kubernetes' API.

A verb calls only `Backend`. The verb handles options, messages, the job table, following a log, Ctrl-C and exit codes;
the backend decides how a job is started and where its files are.

Errors: a backend raises `Exit` with one line and the verb's exit code (1: it failed, 2: the user can mend it),
`Unreachable` while a connection may come back, `CannotStart` if other jobs have the nodes, and `Refused` for files
that it must not accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from invoke.exceptions import Exit

from fabfile.backends.job_answer import check_record
from fabfile.backends.submission import Begun, Submission, Submitted
from infra.inventory import Node

LATEST = "latest"  # stands for the id of the newest job of a cluster
WEIGHTS = "weights"  # folder of a run directory with its model in Hugging Face's layout
NO_MIRROR = ("", "none")  # values of `checkpoint.mirror` for a job without a copy in a bucket


class Unreachable(Exception):
    """The connection failed or was lost; the same request may succeed later. One line."""


class AnotherMachine(Unreachable):
    """It is not the machine of the inventory that answers, as where a node was made again: the same request succeeds
    only with a newer inventory. One line."""


class CannotStart(Exception):
    """The job cannot start now, most often because other jobs have its nodes. One line."""


class Refused(Exception):
    """The sender's files are not what was asked for, or there is no room for them: one line that names the file."""


class JobState(StrEnum):
    """The states of a job. From PENDING to RUNNING to one of the last three, which are final."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether the job is over: it runs again only if it is resumed."""
        return self not in (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job's record. Times are seconds of Unix time."""

    id: str
    state: JobState
    nodes: tuple[str, ...]  # names; empty where its record is damaged
    created: float  # when it was submitted, or resumed
    started: float | None = None  # when its first attempt began; a resumed job keeps it
    ended: float | None = None
    reason: str = ""  # why it failed or was cancelled: one line
    exit_code: int | None = None
    attempt: int = 0
    paused: float = 0.0  # seconds between its ends and its resumptions, which count neither as time nor as cost
    price_per_hour: float = 0.0  # US dollars, for all of its nodes
    queued: bool = False  # waits for nodes that another job has
    ended_before: float | None = None  # when the attempt before it was resumed ended
    first_step: float | None = None  # when the first step of the last attempt was done
    slurm: str = ""  # its number in Slurm's queue; empty: Slurm does not run it
    program: str = ""  # the command of the user's program that it runs; empty: the trainer
    files_on: str = ""  # over SSH: the node that has its checkpoints and metrics; empty: the head
    ended_by: str = ""  # who has ended it: see node/job/endings.py; empty: nobody has recorded it
    away: tuple[str, ...] = ()  # of an elastic job: those of its nodes without which it goes on now

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> JobRecord:
        """A job from a mapping with these keys; others are ignored. ValueError for one that is missing or wrong."""
        check_record(record)
        known = {field.name: record[field.name] for field in fields(cls) if field.name in record}
        try:
            lists = {"nodes": tuple(record["nodes"]), "away": tuple(record.get("away", ()))}
            return cls(**{**known, **lists, "state": JobState(record["state"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a job's record: {error}") from None


@dataclass(frozen=True, kw_only=True)
class OtherJob:
    """A job on the cluster that was not submitted here, and that only its scheduler knows. Times as in JobRecord."""

    id: str  # the scheduler's
    user: str
    name: str  # as its user has named it: not to be trusted
    state: str  # the scheduler's word
    nodes: str  # the scheduler's list of them; empty: it waits
    count: int  # how many nodes it has, or asks for
    submitted: float
    started: float | None = None
    scheduler: str = "slurm"


@dataclass(frozen=True)
class JobNode:
    """A machine that ranks run on."""

    name: str
    ranks: int
    usd_per_hour: float = 0.0
    rank_memory: int = 0  # bytes of each rank, by the inventory: a GPU's, or its share of the machine's; 0: unknown
    on_gpus: bool = False

    @classmethod
    def of(cls, node: Node, usd_per_hour: float) -> JobNode:
        """A machine of an inventory."""
        gigabytes = node.gpu_memory_gb if node.gpus else node.memory_gb / node.slots
        return cls(node.name, node.slots, usd_per_hour, int(gigabytes * 2**30), on_gpus=node.gpus > 0)


@dataclass(frozen=True)
class LogRequest:
    """Which lines of a job's log."""

    job: str
    rank: str = ""  # a rank's number, `-` for the launcher's own lines; empty: all
    since: float = 0.0  # seconds before now; 0: from the start
    tail: int = -1  # only so many of the lines that are there already; -1: all
    follow: bool = True  # go on until the job is over
    cursor: int = 0  # where to begin, as the backend counts; 0: at the log's start


@dataclass(frozen=True)
class LogLine:
    """A line that a rank printed."""

    node: str
    rank: str  # its number, or `-` for the launcher
    text: str


@dataclass(frozen=True)
class LogPart:
    """Some lines of a log as they come."""

    lines: tuple[LogLine, ...] = ()
    cursor: int | None = None  # where to begin after these; None: as before
    job: JobRecord | None = None  # in the last part: the job as it is then


@dataclass(frozen=True)
class File:
    """A file of a job, as it is listed."""

    size: int
    modified: int  # seconds of Unix time


@dataclass(frozen=True)
class SampleOptions:
    """How text is made from a model."""

    prompt: str
    tokens: int
    temperature: float
    top_k: int
    seed: int


@dataclass(frozen=True)
class Ended:
    """How a program that printed something ended."""

    code: int
    stderr: str = ""


class JobFiles(Protocol):
    """Where a job has files."""

    def files(self, job: str) -> Iterator[tuple[str, File | None]]:
        """The names in a job's run directory, not to be trusted, each with its file, or None for a folder."""

    def fetch(
        self, job: str, names: Sequence[str], into: Path, limit: int, progress: Callable[[int], None]
    ) -> dict[str, int]:
        """Write these files into a new folder; returns name and size of those that still existed. `limit` is how many
        bytes may be written; `progress` gets each number of bytes written. Raises Refused."""


class Backend(JobFiles, Protocol):
    """Runs the jobs of one cluster. Connections are opened at need; leaving the `with` block closes them."""

    @property
    def name(self) -> str:
        """The cluster's name."""

    @property
    def host(self) -> str:
        """The name of the machine that answers, for messages: the head node, or the API server."""

    @property
    def mirror(self) -> str:
        """The folder in the cluster's bucket with a folder for each of its jobs; empty: it has no bucket."""

    @property
    def restarts(self) -> int:
        """How often a job of the trainer's starts again after a loss if nobody has said how often."""

    def __enter__(self) -> Backend: ...

    def __exit__(self, *error: object) -> None: ...

    def reach(self) -> None:
        """Open the connection now, so that the next request is quick."""

    def nodes(self) -> tuple[JobNode, ...]:
        """The machines for jobs, in the order in which a job takes them; without a connection."""

    def plan(self, submission: Submission) -> str:
        """Exactly what `submit` would run, as text, without a connection; Exit 2 for what cannot work."""

    def prepare(self, submission: Submission) -> None:
        """Copy the training code to where it runs, and check the job against the data there. May be interrupted. Exit 2
        if the data do not fit the job, CannotStart if another job has one of the nodes."""

    def submit(self, submission: Submission) -> Submitted:
        """Start a prepared job. Quick, as Ctrl-C waits for it. Raises CannotStart."""

    def jobs(self) -> list[JobRecord]:
        """All jobs, the oldest first; one whose launcher has died is FAILED."""

    def other_jobs(self) -> list[OtherJob]:
        """The jobs that others have on the cluster, and that only its scheduler knows; none without a scheduler."""

    def begun(self, job: str) -> Begun:
        """How a job of `jobs()` was begun; `text` is empty if its job.toml is lost."""

    def run_data(self, jobs: Sequence[str]) -> list[dict[str, Any]]:
        """The jobs' run directories as node.run_data reads them; Exit 2 for an unknown job, 1 if nothing answers."""

    def ready_records(self) -> dict[str, Any]:
        """Each node's ready.json, by its name; Unreachable, with the reason, in place of one that is not known."""

    def run_program(self, module: str, *words: str) -> str:
        """What a module of training/ prints, run where the jobs' files are; Exit 1 if it fails."""

    def mirrored(self, url: str) -> list[str]:
        """The ids of the jobs in a mirror; none, with a warning, if the mirror does not answer."""

    def mirrored_job(self, url: str) -> str:
        """The job.toml in a job's folder of a mirror; empty: there is none."""

    def logs(self, request: LogRequest) -> Iterator[LogPart]:
        """The log's parts as they come; the last has the job. Raises Unreachable: ask again from the last cursor."""

    def stop(self, job: str, *, now: bool) -> None:
        """Ask a job to end: after its step and a checkpoint, or `now`. Does not wait for it."""

    def manage(self, job: str, order: Mapping[str, Any]) -> dict[str, Any]:
        """Give a job's head an order of the job's manager: see node/job/managed.py. Exit 1 if it does not answer."""

    def leftovers(self, job: str) -> dict[str, str]:
        """End what still runs of a finished job; returns, by node, what could not be ended."""

    def on_other_nodes(self, job: JobRecord) -> Mapping[str, JobFiles]:
        """A job's nodes, beside the head, that have files of their own; none where they share a folder."""

    def export_weights(self, job: str) -> str:
        """Write the job's best or newest model in Hugging Face's layout into a folder of its run directory, in place of
        an earlier one; returns the folder's name. Exit 1 if there is no model."""

    def sample(self, job: str, options: SampleOptions) -> Iterator[bytes | Ended]:
        """Text from a job's best or newest model as it is made; last, how the program ended."""


def find(jobs: Sequence[JobRecord], wanted: str) -> JobRecord | None:
    """The job with this id or number, or the `latest`, of jobs ordered by number; None if there is none."""
    if wanted == LATEST:
        return jobs[-1] if jobs else None
    numbered = [job for job in jobs if wanted.isdigit() and job.id.endswith(f"-{wanted}")]
    return next((job for job in jobs if job.id == wanted), numbered[-1] if numbered else None)


def find_job(backend: Backend, wanted: str) -> JobRecord:
    """A cluster's job by its id, its number or `latest`; Exit 2, with the list of jobs, if there is none."""
    jobs = backend.jobs()
    found = find(jobs, wanted)
    if found is None:
        names = ", ".join(job.id for job in jobs[-8:]) or "none"
        raise Exit(f"no job {wanted!r} on {backend.name}; there are: {names}", code=2)
    return found
