"""What a verb asks a backend to start, what it was begun with if it is to go on, and what it then is."""

from __future__ import annotations

from dataclasses import dataclass

from fabfile.job_file import Resolved
from fabfile.launchers.program import SILENCE, Program
from fabfile.workdir.snapshot import Snapshot


@dataclass(frozen=True)
class Begun:
    """A job as it was begun: the settings that a resumed job continues with."""

    id: str
    text: str  # its job.toml; empty for a program
    nodes: int  # how many nodes it was started on; 0: not known
    mirrored: bool = False  # only its mirror in a bucket has it: another cluster began it
    succeeded: bool = False
    files_on: str = ""  # as in JobRecord
    on: tuple[str, ...] = ()  # over SSH: the names of the nodes of its last attempt; empty: not known
    program: Program | None = None  # the user's program that it ran; None: the trainer
    elastic: bool = False  # it was begun as in Submission


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job to be started: either the trainer's, with a job file, or a user's program."""

    job: Resolved | None = None
    program: Program | None = None
    nodes: int  # how many, the first of `Backend.nodes()` that are free
    on_first: bool = False  # on the first ones, free or not: a manager replaces these
    own_requirements: bool = False  # the program's are from a file of the operator's, not from a job's record
    snapshot: Snapshot | None = None  # a program's working directory; None: it is on the nodes already
    launcher: str = ""  # as `--launcher` says; empty: the cluster's own
    begun: Begun | None = None  # the job to go on with; None: a new one
    queue: bool = False  # wait for nodes that another job has
    restarts: int = 0  # how often to start again from the last checkpoint
    after_losses_only: bool = False  # `restarts` are for lost ranks and machines: see JobSpec
    elastic: bool = False  # the ranks go on without those that are lost, and let others join
    time_limit: float = 0.0  # seconds until it must be over, with a checkpoint; 0: no limit
    prepare: str = "fab prepare JOB"  # the command that makes the job's data, for the message that they are missing

    def __post_init__(self) -> None:
        if (self.job is None) == (self.program is None):
            raise ValueError("a submission has either a job file or a program")

    @property
    def name(self) -> str:
        """The job's id is NAME-NUMBER."""
        named = self.program or self.job
        assert named is not None
        return named.name

    @property
    def text(self) -> str:
        """The resolved job.toml; empty for a program."""
        return self.job.text if self.job else ""

    @property
    def timeout(self) -> float:
        """Seconds without a heartbeat after which a rank counts as hung."""
        return self.job.timeout if self.job else SILENCE

    @property
    def threads(self) -> int:
        """Computing threads of each rank; 0: one for each of its cores."""
        return self.job.threads if self.job else 0

    @property
    def mirror(self) -> str:
        """The bucket's folder with a folder for each mirrored run; `none` or empty: no mirror."""
        return self.job.mirror if self.job else ""


@dataclass(frozen=True)
class Submitted:
    """A job that was started."""

    id: str
    cursor: int = 0  # where to read its log from: a resumed job's earlier lines are left out
    where: str = ""  # the nodes' names, or how many there will be, for a message
